"""Engine pool: what a restarted local engine and a fleet of workers share.

A pool is one engine made of *sessions*, one engine object each, from ready to closed. It submits
requests through ``RequestRecovery``, so that they survive the loss of a session. Subclasses decide
where sessions come from: ``engine/supervisor.py`` keeps one and restarts it, ``engine/fleet`` has
one per worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

from engine.base import Engine, SupportsUnclaimed
from engine.speculation.accounting import Totals
from engine.supervision.isolation import PendingStart
from engine.supervision.policy import (
    LossLog,
    RecoveryObserver,
    StallDetector,
    SupervisionTimeouts,
    now,
)
from engine.supervision.recovery import FailureKind, InFlightRequest, RequestRecovery, Submission
from engine.types import EngineInfo, EngineRequest, Step

log = logging.getLogger(__name__)

CLOSE_S = 30.0
"""An engine that does not close in this time is abandoned."""


class EngineSession:
    """One engine object in use. Retired, it takes no new requests and closes after the last one."""

    def __init__(self, engine: Engine, info: EngineInfo, close_s: float = CLOSE_S) -> None:
        self.engine = engine
        self.info = info
        self.stall_detector = StallDetector()
        self.started_at = now()
        self.num_delivered = 0
        """Tokens of it that clients got."""
        self.lost = False
        self.failure = FailureKind.DIED
        """Once it is lost: what that means for the requests that were running in it."""
        self.closed = asyncio.Event()
        self._close_s = close_s
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    @contextmanager
    def use(self) -> Iterator[None]:
        """A request runs in it, while inside."""
        try:
            with self.stall_detector.track():
                yield
        finally:
            self._close_if_idle()

    @property
    def is_idle(self) -> bool:
        return not self.stall_detector.num_running

    @property
    def is_shared(self) -> bool:
        """Several requests run in it: none of them alone is to blame for a stall."""
        return self.stall_detector.num_running > 1

    @property
    def unclaimed(self) -> Totals:
        """Steps whose tokens no request received, as the engine counts them."""
        return self.engine.unclaimed if isinstance(self.engine, SupportsUnclaimed) else Totals()

    def retire(self) -> None:
        self._retired = True
        self._close_if_idle()

    def close(self) -> None:
        """Begin to close it: its requests end with EngineDead."""
        self._retired = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    def _close_if_idle(self) -> None:
        if self._retired and self.is_idle:
            self.close()

    async def _close(self) -> None:
        await close_engine(self.engine, self._close_s)
        self.closed.set()


async def close_engine(engine: Engine, close_s: float = CLOSE_S) -> None:
    """Close an engine that may hang; never raises."""
    try:
        async with asyncio.timeout(close_s):
            await engine.aclose()
    except TimeoutError:
        log.error("engine could not be closed in %g s", close_s)
    except Exception:
        log.exception("engine could not be closed")


@dataclass(eq=False)
class SessionSubmission(Submission):
    """One submission of a request to one session."""

    session: EngineSession
    inflight: InFlightRequest
    pending: PendingStart

    @property
    def engine(self) -> Engine:
        return self.session.engine

    @property
    def started(self) -> bool:
        return self.pending.started

    def record_step(self, step: Step) -> None:  # noqa: ARG002 - subclasses count its tokens
        self.session.stall_detector.record_step()
        self.pending.confirm()

    def record_delivery(self, step: Step) -> None:
        self.session.num_delivered += len(step.token_ids)


class EnginePool:
    """Base of ``SupervisedEngine`` and ``Fleet``: see ``engine.base.ResilientEngine``."""

    timeouts: SupervisionTimeouts
    observer: RecoveryObserver

    def __post_init__(self) -> None:
        self._info: EngineInfo | None = None
        self._depth: int | None = None
        """The bound on every request's depth."""
        self._losses = LossLog()
        self._recovery = RequestRecovery(self, self.timeouts, self.observer)
        self._changed = asyncio.Event()

    def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        return self._recovery.generate(self._bound_depth(request))

    @property
    def unclaimed(self) -> Totals:
        """Steps whose tokens no request received: those of replays, and those engines count."""
        return sum((session.unclaimed for session in self._sessions()), self._recovery.replayed)

    @property
    def losses(self) -> LossLog:
        """The last engine losses, oldest first."""
        return self._losses

    @property
    def accounts(self) -> bool:
        """The engines report their decode steps."""
        return self._info is None or self._info.reports_decode_steps

    @property
    def is_closed(self) -> bool:
        """No engine will become available any more."""
        raise NotImplementedError

    def reset_failures(self) -> None:
        """Engines were lost through one request, which is rejected from now on."""

    def submit(self, inflight: InFlightRequest) -> AbstractAsyncContextManager[Submission]:
        """Wait for an engine and hold it for the request. Raises EngineDead."""
        raise NotImplementedError

    def _sessions(self) -> Iterable[EngineSession]:
        raise NotImplementedError

    def _bound_depth(self, request: EngineRequest) -> EngineRequest:
        raise NotImplementedError

    def _notify(self) -> None:
        """Wake what waits for an engine."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
