"""Engine pool: the common part of a restarted local engine and a fleet of workers.

A pool is one engine made of *sessions*, one engine object each, from ready to closed. It submits
requests through ``RequestRecovery``, so that they survive the loss of a session. Subclasses decide
where sessions come from: ``supervisor.py`` keeps one and restarts it, ``engine/fleet`` has one per
worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

from eaglegate.engine.base import Engine, SupportsUnclaimed
from eaglegate.engine.supervision.draft_blame import DeathInquiry, DraftBlame, DraftHold
from eaglegate.engine.supervision.policy import (
    KEPT,
    AppliedDepth,
    EngineLoss,
    RecoveryObserver,
    StallDetector,
    SupervisionTimeouts,
    now,
)
from eaglegate.engine.supervision.recovery import (
    FailureKind,
    InFlightRequest,
    RequestRecovery,
    Submission,
)
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import STEP_TOKENS, EngineInfo, EngineRequest, Step, StepSink

log = logging.getLogger(__name__)

CLOSE_S = 30.0
"""An engine that does not close in this time is abandoned."""


class PendingStart:
    """A submission before its first step. Call ``confirm`` with that step.

    As a context manager it waits until the request may be submitted, and ends with the submission.
    """

    def __init__(self, isolation: PoisonIsolation, strikes: int, submissions: int) -> None:
        self._isolation = isolation
        self._rank = (strikes, submissions)
        self.started = False

    async def __aenter__(self) -> PendingStart:
        await self._isolation.enter(*self._rank)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.confirm()

    def confirm(self) -> None:
        if not self.started:
            self.started = True
            self._isolation.leave()


class PoisonIsolation:
    """Decides which request may be submitted now, to find a request that crashes engines.

    A request that has made a step since it was submitted is not suspected. Each other request gets
    a strike and is submitted again *alone*: no other request is between submission and first step.
    Requests with the fewest strikes go first, so that chance does not hit the same request twice.
    If the engine dies during that time, the request killed it. A signal from outside must hit a
    request alone several times. So a request that makes the kernel run out of memory is found, and
    a request that was running when an operator killed the engine is not punished.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._pending = 0
        self._waiting: list[tuple[int, int]] = []
        """Strikes and submissions of the requests that wait to be alone."""
        self._alone = False

    def admit(self, *, strikes: int, submissions: int = 0) -> PendingStart:
        """Return the pending start of a request. ``strikes`` counts engines lost in a row without a
        step, ``submissions`` all submissions."""
        return PendingStart(self, strikes, submissions)

    async def enter(self, strikes: int, submissions: int) -> None:
        if not strikes:
            while self._alone or self._waiting:
                await self._changed.wait()
        else:
            await self._wait_alone((strikes, submissions))
        self._alone = strikes > 0
        self._pending += 1

    def leave(self) -> None:
        """Record that the request has made its first step or has ended."""
        held_up = self._alone or self._waiting
        self._pending -= 1
        self._alone = False
        if held_up:
            self._notify()

    async def _wait_alone(self, rank: tuple[int, int]) -> None:
        self._waiting.append(rank)
        try:
            while self._pending or rank > min(self._waiting):
                await self._changed.wait()
        finally:
            self._waiting.remove(rank)
            self._notify()

    def _notify(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()


class EngineSession:
    """One engine object in use, and the context in which a request runs in it. Once retired, it
    takes no new requests and closes after the last one."""

    def __init__(self, engine: Engine, info: EngineInfo, close_s: float = CLOSE_S) -> None:
        self.engine = engine
        self.info = info
        self.stall_detector = StallDetector()
        self.started_at = now()
        self.useful = False
        """True if a client has received a token from the engine."""
        self.lost = False
        self.inquiry = DeathInquiry()
        self.failure = FailureKind.DIED
        """Kind of failure for the requests that were running in a lost session."""
        self.closed = asyncio.Event()
        self._close_s = close_s
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    def __enter__(self) -> EngineSession:
        self.stall_detector.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.stall_detector.end()
        if self._retired:
            self._close_if_idle()

    @property
    def is_idle(self) -> bool:
        return not self.stall_detector.num_running

    @property
    def is_shared(self) -> bool:
        """True if several requests run in the session, so that none alone is to blame for a
        stall."""
        return self.stall_detector.num_running > 1

    @property
    def unclaimed(self) -> Totals:
        """Steps whose tokens no request received, as counted by the engine."""
        engine = self.engine.capability(SupportsUnclaimed)
        return Totals() if engine is None else engine.unclaimed

    def retire(self) -> None:
        self._retired = True
        self._close_if_idle()

    def close(self) -> None:
        """Begin to close the engine. Its requests end with EngineDead."""
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
    started: bool = field(default=False, init=False)
    delivered: bool = field(default=False, init=False)

    @property
    def engine(self) -> Engine:
        return self.session.engine

    @property
    def inquiry(self) -> DeathInquiry:
        return self.session.inquiry

    def record_start(self) -> None:
        self.started = True
        self.pending.confirm()

    def record_step(self, step: Step) -> None:  # noqa: ARG002 - subclasses count its tokens
        self.session.stall_detector.moved = True

    def record_delivery(self) -> None:
        self.delivered = self.session.useful = True


class EnginePool(Engine, SupportsUnclaimed):
    """Engine that survives the loss of its backends, in-flight requests included: base of
    ``SupervisedEngine`` and ``Fleet``.
    """

    timeouts: SupervisionTimeouts
    observer: RecoveryObserver

    def __post_init__(self) -> None:
        self._info: EngineInfo | None = None
        self._depth: int | None = None
        """Bound on every request's depth, set by an operator."""
        self.draft_blame = DraftBlame()
        self.losses: deque[EngineLoss] = deque(maxlen=KEPT)
        """The last engine losses, oldest first."""
        self._recovery = RequestRecovery(self, self.timeouts, self.observer)
        self._changed = asyncio.Event()

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound every request's depth. Returns at once, even while the backend restarts.

        Raises ValueError if the engine has no depth to bound.
        """
        raise NotImplementedError

    async def wait_failed(self) -> str:
        """Wait until no engine will become available any more, and return the reason."""
        raise NotImplementedError

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        await self._recovery.generate(self._bound_depth(request), sink)

    @property
    def unclaimed(self) -> Totals:
        """Steps whose tokens no request received, counted from replays and by the engines."""
        return sum((session.unclaimed for session in self._sessions()), self._recovery.replayed)

    @property
    def accounts(self) -> bool:
        """True if the engines report their decode steps."""
        return self._info is None or self._info.reports_decode_steps

    @property
    def step_tokens(self) -> int:
        """Maximum number of tokens that the running backends compute in a step, together."""
        return sum(session.info.step_tokens for session in self._sessions()) or STEP_TOKENS

    @property
    def is_closed(self) -> bool:
        """True if no engine will become available any more."""
        raise NotImplementedError

    @property
    def is_live(self) -> bool:
        """True while a backend runs, False while it restarts."""
        return next(iter(self._sessions()), None) is not None

    def reset_failures(self) -> None:
        """Forget the last losses. One request caused them, and it is rejected from now on."""

    @property
    def draft_holds(self) -> tuple[DraftHold, ...]:
        """Depths that are not used because they killed engines."""
        return self.draft_blame.holds

    def blame_draft(self, submission: Submission, depth: int | None) -> None:
        """Count an engine's death caused by its drafts, once per engine. A second death holds the
        depth.

        An engine that ignores the depth of a request proves nothing.
        """
        assert isinstance(submission, SessionSubmission)
        speculation = submission.session.info.speculation
        hold = self.draft_blame.limit(self._depth)
        depths = (bound for bound in (depth, hold, speculation.depth) if bound is not None)
        if speculation.per_request and (depth := min(depths)):
            blame = partial(self._count_draft_death, speculation.method, depth)
            submission.inquiry.blame_drafts(blame)

    def _count_draft_death(self, method: str, depth: int) -> None:
        self.observer.record_draft_death(method, depth)
        log.error("an engine died of its drafts (%s, depth %d)", method, depth)
        if (hold := self.draft_blame.add(method, depth)) is None:
            return
        log.error(
            "depth %d of %s is held off: it killed engines; requests get depth %d at most until "
            "POST /admin/speculation/release",
            hold.depth, hold.method, hold.bound,
        )  # fmt: skip
        self.observer.record_draft_hold(hold, is_held=True)
        self._change_bound()

    def release_drafts(self) -> tuple[DraftHold, ...]:
        """Release the held depths on behalf of an operator, and return the holds."""
        holds = self.draft_blame.release()
        for hold in holds:
            self.observer.record_draft_hold(hold, is_held=False)
        if holds:
            log.warning("an operator released %d depths that were held off", len(holds))
            self._change_bound()
        return holds

    def submit(self, inflight: InFlightRequest) -> AbstractAsyncContextManager[Submission]:
        """Wait for an engine and hold it for the request. Raises EngineDead."""
        raise NotImplementedError

    def _sessions(self) -> Iterable[EngineSession]:
        raise NotImplementedError

    @property
    def _bound(self) -> int | None:
        """Bound on every request's depth; None if unbounded."""
        return self.draft_blame.limit(self._depth)

    def _change_bound(self) -> None:
        """Apply ``_bound`` if the engines enforce it themselves."""

    def _bound_depth(self, request: EngineRequest) -> EngineRequest:
        """Return the request with the bound on its depth, if its engine does not enforce the
        bound."""
        return request

    def _notify(self) -> None:
        """Wake all waiters for an engine."""
        event, self._changed = self._changed, asyncio.Event()
        event.set()
