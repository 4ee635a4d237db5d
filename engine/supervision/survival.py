"""Carries requests across the deaths of engines, whoever provides the engines.

A *host* has engines: one after another (``engine/supervisor.py``) or several at a time
(``engine/fleet``). Survival asks it for a place to run a request, goes on in the next place when
an engine is lost (``continuation.py``), and finds out which request kills engines
(``probation.py``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Protocol

from engine.base import Engine
from engine.errors import EngineDead, EngineFailed, EngineOverloaded, RequestQuarantined
from engine.speculation.accounting import Totals, total
from engine.supervision.continuation import Continuation, Diverged
from engine.supervision.rules import Outcome, Patience, Watcher
from engine.types import EngineRequest, FinishReason, Step

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Survivor:
    """A request and what it has been through."""

    request: EngineRequest
    continuation: Continuation
    deaths: int = 0
    strikes: int = 0
    """Engines lost in a row without a step of this request since it was submitted."""
    alone: int = 0
    """Those of them in which nobody else was without a step."""
    failures: int = 0
    """Engines that lived on and could not run it."""
    avoided: set[object] = field(default_factory=set)
    """Where it should not go next, if there is anywhere else."""
    ended: bool = False


class Place(Protocol):
    """Where one submission of a request runs."""

    @property
    def engine(self) -> Engine: ...

    @property
    def killed(self) -> bool:
        """The engine was ended by a signal from outside: no request is to blame, unless it
        happens again and again."""
        ...

    @property
    def proven(self) -> bool:
        """The request has made a step."""
        ...

    def made(self, step: Step, /) -> None:
        """The engine made a step for this request."""
        ...

    def lost(self, error: EngineDead, /) -> bool:
        """The engine was lost under the request; False if it never got the request."""
        ...

    def refused(self, error: EngineOverloaded | EngineFailed, /) -> None:
        """The engine lives on and does not run the request. Raises ``error`` unless another may."""
        ...


class Host(Protocol):
    """Who has the engines."""

    @property
    def accounts(self) -> bool:
        """The engines report their decode steps."""
        ...

    @property
    def over(self) -> bool:
        """There will be no engine any more."""
        ...

    def place(self, survivor: Survivor) -> AbstractAsyncContextManager[Place]:
        """An engine for the request, while inside; waits for one. Raises EngineDead."""
        ...


@dataclass(eq=False)
class Survival:
    """``generate`` of an engine that is made of a host's engines."""

    host: Host
    patience: Patience
    watcher: Watcher
    replayed: Totals = field(default_factory=Totals)
    """Steps made a second time, for nobody."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        survivor = Survivor(request, Continuation(request, accounts=self.host.accounts))
        while not survivor.ended:
            if survivor.continuation.complete:
                yield Step((), finish=FinishReason.LENGTH)
                return
            async with aclosing(self._attempt(survivor)) as steps:
                async for step in steps:
                    yield step

    async def _attempt(self, survivor: Survivor) -> AsyncGenerator[Step, None]:
        """Steps from one engine, each token once."""
        going_on = survivor.continuation
        async with self.host.place(survivor) as place:
            try:
                async with aclosing(place.engine.generate(going_on.rest())) as steps:
                    async for step in steps:
                        if not place.proven:
                            survivor.strikes = survivor.alone = 0
                        place.made(step)
                        new = going_on.take(step)
                        if new is not None:
                            yield new
                survivor.ended = True
            except EngineDead as error:
                if place.lost(error):
                    self._interrupted(survivor, place)
            except (EngineOverloaded, EngineFailed) as error:
                place.refused(error)
            except Diverged:
                going_on.diverged()
            finally:
                self.replayed += total(going_on.take_left_out(), requests=0)

    def _interrupted(self, survivor: Survivor, place: Place) -> None:
        """Raises what ends a request that is not to be continued."""
        survivor.deaths += 1
        if not place.proven:
            survivor.alone += survivor.strikes > 0
            survivor.strikes += 1
        if survivor.alone >= (self.patience.kills if place.killed else 1):
            self.watcher.interrupted(Outcome.QUARANTINED)
            log.error("request %s kills engines; it is refused", survivor.request.id)
            raise RequestQuarantined(
                f"The engine died {survivor.strikes} times in a row while it ran request "
                f"{survivor.request.id}; it will not be run again."
            )
        if survivor.deaths > self.patience.continuations or self.host.over:
            self.watcher.interrupted(Outcome.LOST)
            raise EngineDead("The engine died, and the answer could not be continued.")
        self.watcher.interrupted(survivor.continuation.way)
