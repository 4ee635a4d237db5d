"""Request recovery: in-flight requests survive the loss of their engine.

An *engine provider* has engines: one after another (``engine/supervisor.py``) or several at a time
(``engine/fleet``). ``RequestRecovery`` asks it where to submit a request, continues on the next
engine when one is lost (``continuation.py``), and finds the request that crashes engines
(``isolation.py``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.base import Engine
from engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    RequestQuarantined,
    RequestRejected,
)
from engine.speculation.accounting import Totals, total
from engine.supervision.continuation import Continuation, ReplayDiverged
from engine.supervision.policy import RecoveryObserver, RecoveryOutcome, SupervisionTimeouts, now
from engine.types import EngineRequest, FinishReason, Step

log = logging.getLogger(__name__)


RecoverableError = EngineDead | EngineOverloaded | EngineFailed | RequestRejected
"""What another engine might do better."""


class FailureKind(StrEnum):
    """How a submission ended that did not end well."""

    TURNED_AWAY = "turned_away"
    """It did not run; nothing was lost."""
    CUT_OFF = "cut_off"
    """It was lost, and the engine lives."""
    DIED = "died"
    """The engine is gone, and perhaps through this request."""
    HUNG = "hung"
    """The engine stood still while other requests were in it, too."""
    KILLED = "killed"
    """A signal from outside ended or stopped the engine: no request is to blame, unless it happens
    again and again."""


@dataclass(slots=True, eq=False)
class RecoverableRequest:
    """A request and what it has been through."""

    request: EngineRequest
    continuation: Continuation
    submissions: int = 0
    """Engines it was given to."""
    fruitless: int = 0
    """Engines lost in a row, through their own fault, without a new token for this request."""
    losses: int = 0
    """Engines lost through their own fault, in all."""
    strikes: int = 0
    """Engines lost in a row without a step of this request since it was submitted."""
    crashes: int = 0
    """Those of them that ended by themselves."""
    blamed: int = 0
    """Crashes behind the first one, in which nobody else was without a step."""
    signals: int = 0
    """Signals from outside that met it like that."""
    failures: int = 0
    """Engines that lived on and could not run it."""
    avoided: set[object] = field(default_factory=set)
    """Where it should not go next, if there is anywhere else."""
    refusals: list[Callable[[], None]] = field(default_factory=list)
    """Of those that called it invalid: what to do if another one runs it."""
    stranded_at: float | None = None
    """When its engine was lost or had no room for it; None when it has made a step since."""
    ended: bool = False

    def proven(self) -> None:
        """It has made a step where it is."""
        self.strikes = self.crashes = self.blamed = self.signals = 0
        self.stranded_at = None

    def advanced(self) -> None:
        """It has got a token it did not have."""
        self.fruitless = 0

    def disprove_refusals(self) -> None:
        """It runs: who refused it was wrong."""
        refusals, self.refusals = self.refusals, []
        for blame in refusals:
            blame()

    def met(self, fate: FailureKind, *, proven: bool) -> None:
        """Its engine was lost to it; ``proven``: after a step for it."""
        if fate is not FailureKind.KILLED:
            self.fruitless += 1
            self.losses += 1
        if proven or fate is FailureKind.CUT_OFF:
            return
        if fate is FailureKind.DIED:
            self.blamed += self.crashes > 0
            self.crashes += 1
        elif fate is FailureKind.KILLED:
            self.signals += self.strikes > 0
        self.strikes += 1

    def kills(self, patience: SupervisionTimeouts) -> bool:
        """It is the cause: there is nobody else to blame."""
        return self.blamed > 0 or self.signals >= patience.kills

    def spent(self, patience: SupervisionTimeouts) -> bool:
        return self.fruitless > patience.continuations or self.losses > patience.losses

    @property
    def begun(self) -> bool:
        """Some of it was delivered."""
        return self.continuation.way is not RecoveryOutcome.RERUN


class Submission(Protocol):
    """Where one submission of a request runs."""

    @property
    def engine(self) -> Engine: ...

    @property
    def proven(self) -> bool:
        """The request has made a step."""
        ...

    def made(self, step: Step, /) -> None:
        """The engine made a step for this request."""
        ...

    def delivered(self, step: Step, /) -> None:
        """Part of a step went to the client: it had not been there before."""
        ...

    async def fate(self, error: RecoverableError, /) -> FailureKind:
        """What the error means for the request, told to whoever cares for the engine.

        Raises ``error`` where no engine is going to do better.
        """
        ...


Attempt = tuple[Submission, AsyncGenerator[Step, None]]
"""One submission of a request: where it runs, and what comes of it; each token once."""


class EngineProvider(Protocol):
    """Who has the engines."""

    @property
    def accounts(self) -> bool:
        """The engines report their decode steps."""
        ...

    @property
    def over(self) -> bool:
        """There will be no engine any more."""
        ...

    def absolve(self) -> None:
        """Engines were lost through one request, which is refused from now on."""
        ...

    def place(self, survivor: RecoverableRequest) -> AbstractAsyncContextManager[Submission]:
        """An engine for the request, while inside; waits for one. Raises EngineDead."""
        ...


@dataclass(eq=False)
class RequestRecovery:
    """``generate`` of an engine that is made of a host's engines."""

    host: EngineProvider
    patience: SupervisionTimeouts
    watcher: RecoveryObserver
    replayed: Totals = field(default_factory=Totals)
    """Steps made a second time, for nobody."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        survivor = RecoverableRequest(request, Continuation(request, accounts=self.host.accounts))
        going_on = survivor.continuation
        while not survivor.ended:
            if going_on.complete:
                yield Step((), finish=FinishReason.LENGTH)
                return
            async with self._attempt(survivor) as (place, steps):
                async for step in steps:
                    if not place.proven:
                        survivor.proven()
                    place.made(step)
                    new = going_on.take(step)
                    if new is not None:
                        place.delivered(new)
                        survivor.advanced()
                        yield new
                survivor.ended = True

    @asynccontextmanager
    async def _attempt(self, survivor: RecoverableRequest) -> AsyncGenerator[Attempt, None]:
        """One engine's steps. Ends well after a loss that the request survives."""
        going_on = survivor.continuation
        async with self.host.place(survivor) as place:
            survivor.submissions += 1
            try:
                async with aclosing(place.engine.generate(going_on.rest())) as steps:
                    yield place, steps
            except (EngineDead, EngineOverloaded, EngineFailed, RequestRejected) as error:
                self._interrupted(survivor, place, await place.fate(error))
            except ReplayDiverged:
                going_on.diverged()
            finally:
                self.replayed += total(going_on.take_left_out(), requests=0)

    def _interrupted(
        self, survivor: RecoverableRequest, place: Submission, fate: FailureKind
    ) -> None:
        """Raises what ends a request that is not to be continued."""
        if survivor.stranded_at is None:
            survivor.stranded_at = now()
        if fate is FailureKind.TURNED_AWAY:
            return
        survivor.met(fate, proven=place.proven)
        if survivor.kills(self.patience):
            self.watcher.interrupted(RecoveryOutcome.QUARANTINED)
            self.host.absolve()
            log.error("request %s kills engines; it is refused", survivor.request.id)
            raise RequestQuarantined(
                f"The engine died {survivor.strikes} times in a row while it ran request "
                f"{survivor.request.id}; it will not be run again."
            )
        if survivor.spent(self.patience) or self.host.over:
            self.watcher.interrupted(RecoveryOutcome.LOST)
            raise EngineDead("The engine died, and the answer could not be continued.")
        self.watcher.interrupted(survivor.continuation.way)
