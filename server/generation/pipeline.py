"""Pipeline: the engine with its renderer, parsers, policy and admission.

A constraint is compiled before its request is admitted, in a bounded queue that is fair by key, so
that the request holds no engine slot meanwhile. Requests without one never wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Protocol

from eaglegate.engine.base import Engine, Renderer
from eaglegate.engine.errors import EngineError, RequestRejected
from eaglegate.engine.speculation.policy import SpeculationPolicy
from eaglegate.engine.types import Constraint, EngineInfo
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.isolation import CacheIsolation
from eaglegate.server.errors import InvalidRequest, TooManyRequests
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.generation.job import ServedModel
from eaglegate.server.http.response import from_engine

BOUNDS = AdmissionLimits(running=1, queued=64, queued_tokens=4 << 20)
"""One compilation at a time; the limits of waiting requests and their characters."""


class ConstraintProbe(Protocol):
    """Compiles constraints to see whether the engine can."""

    def is_known(self, constraint: Constraint) -> bool:
        """Whether ``check`` answers at once."""
        ...

    async def check(self, constraint: Constraint) -> None:
        """Raises RequestRejected for a constraint that would block the engine."""
        ...


class ConstraintTrials:
    def __init__(self, probe: ConstraintProbe, bounds: AdmissionLimits = BOUNDS) -> None:
        self._probe = probe
        self.queue = Admission(bounds)

    async def check(
        self, constraints: Iterable[Constraint | None], visitor: Requester, param: str
    ) -> None:
        """Raises InvalidRequest, naming ``param``, TooManyRequests and other GatewayErrors."""
        different = {constraint for constraint in constraints if constraint is not None}
        try:
            for constraint in different:
                if self._probe.is_known(constraint):
                    await self._probe.check(constraint)
                else:
                    await self._try(constraint, replace(visitor, quota=None, concurrency=None))
        except RequestRejected as error:
            raise InvalidRequest(
                f"The requested output format cannot be compiled into a grammar: {error}",
                param=param,
            ) from error
        except EngineError as error:
            raise from_engine(error) from error

    async def _try(self, constraint: Constraint, visitor: Requester) -> None:
        with ExitStack() as inside:
            try:
                place = inside.enter_context(self.queue.enter(visitor))
                await place.admit(1, len(constraint.value))
            except TooManyRequests as error:
                raise _too_many(error) from error
            trial = asyncio.create_task(self._probe.check(constraint))
            until_over = inside.pop_all()

        def over(trial: asyncio.Task[None]) -> None:
            if not trial.cancelled() and trial.exception() is None:
                place.record_served()
            until_over.close()

        trial.add_done_callback(over)
        # If the client leaves, the compilation keeps its slot: the next one must not pay for it.
        await asyncio.shield(trial)


def _too_many(error: TooManyRequests) -> TooManyRequests:
    if error.code != "queue_full":
        return error
    return TooManyRequests(
        "Too many schemas, patterns and grammars are waiting to be compiled. Retry after the time "
        "in Retry-After; those compiled before do not wait.",
        code="constraint_queue_full",
        retry_after_s=error.retry_after_s,
    )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts a request passes through: made when the engine is ready."""

    engine: Engine
    info: EngineInfo
    renderer: Renderer
    parsers: ParserFactory
    served: ServedModel
    policy: SpeculationPolicy
    admission: Admission = field(default_factory=Admission)
    isolation: CacheIsolation = field(default_factory=CacheIsolation)
    trials: ConstraintTrials | None = None
    """Compiles constraints before the engine sees them; None skips this."""
