"""Trial compilation of constraints before their requests are admitted.

The queue of trials is bounded and fair by key. A request that waits in it holds no engine slot, and
requests without a constraint never wait here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from eaglegate.engine.errors import EngineError, RequestRejected
from eaglegate.engine.types import Constraint
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.errors import InvalidRequest, TooManyRequests, from_engine

BOUNDS = AdmissionLimits(running=1, queued=64, queued_tokens=4 << 20)
"""One compilation at a time, and limits on waiting requests and their characters."""


class ConstraintProbe(Protocol):
    """Compiles constraints to check whether the engine can."""

    def is_known(self, constraint: Constraint) -> bool:
        """Return True if ``check`` will answer immediately."""
        ...

    async def check(self, constraint: Constraint) -> None:
        """Raise RequestRejected for a constraint that would block the engine."""
        ...

    async def warm_up(self) -> None:
        """Do what the first ``check`` would wait for. Never raises."""
        ...


class ConstraintTrials:
    def __init__(self, probe: ConstraintProbe, bounds: AdmissionLimits = BOUNDS) -> None:
        self._probe = probe
        self.queue = Admission(bounds)

    async def check(
        self, constraints: Iterable[Constraint | None], requester: Requester, param: str
    ) -> None:
        """Raise InvalidRequest, naming ``param``, for constraints that do not compile.

        Also raises TooManyRequests and other GatewayErrors.
        """
        different = {constraint for constraint in constraints if constraint is not None}
        try:
            for constraint in different:
                if self._probe.is_known(constraint):
                    await self._probe.check(constraint)
                else:
                    await self._try(constraint, replace(requester, quota=None, concurrency=None))
        except RequestRejected as error:
            raise InvalidRequest(
                f"The requested output format cannot be compiled into a grammar: {error}",
                param=param,
            ) from error
        except EngineError as error:
            raise from_engine(error) from error

    async def _try(self, constraint: Constraint, requester: Requester) -> None:
        with ExitStack() as stack:
            try:
                place = stack.enter_context(self.queue.enter(requester))
                await place.admit(1, len(constraint.value))
            except TooManyRequests as error:
                raise _too_many(error) from error
            trial = asyncio.create_task(self._probe.check(constraint))
            slot = stack.pop_all()

        def leave(trial: asyncio.Task[None]) -> None:
            if not trial.cancelled() and trial.exception() is None:
                place.record_served()
            slot.close()

        trial.add_done_callback(leave)
        # If the client disconnects, the compilation keeps its slot until it ends, so that the next
        # one does not compete with it.
        await asyncio.shield(trial)


def _too_many(error: TooManyRequests) -> TooManyRequests:
    if error.code != "queue_full":
        return error
    return TooManyRequests(
        "Too many schemas, patterns and grammars are waiting to be compiled. Retry after the time "
        "in Retry-After; already compiled ones do not wait.",
        code="constraint_queue_full",
        retry_after_s=error.retry_after_s,
    )
