"""Supervised engine: one local engine, restarted when it is lost.

The supervisor checks the engine's health and that it makes steps. An engine that died or hung is
closed and replaced. The pause before a restart grows with each failure in a row; after too many
failures the supervisor gives up. In-flight requests wait for the next engine and continue on it
(``recovery.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eaglegate.engine.base import (
    CountsImages,
    DropsBlocks,
    Engine,
    Kind,
    SupportsDepth,
    SupportsKilled,
    SupportsPlanning,
    SupportsPostMortem,
    T,
)
from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineStartError,
    RequestRejected,
)
from eaglegate.engine.speculation.accounts.scores import (
    UNPACED,
    AnswerScores,
    AuditPace,
    ScoresAnswers,
)
from eaglegate.engine.speculation.drafts.versions import SwapsDrafts
from eaglegate.engine.supervision.policy import (
    AppliedDepth,
    LossCause,
    RecoveryObserver,
    RestartPolicy,
    SupervisionTimeouts,
    create_loss,
    now,
)
from eaglegate.engine.supervision.pool import (
    EnginePool,
    EngineSession,
    PoisonIsolation,
    SessionSubmission,
    close_engine,
)
from eaglegate.engine.supervision.recovery import FailureKind, InFlightRequest, RecoverableError
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo, EngineRequest, Health, PostMortem
from eaglegate.text.media.image import Image

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

BOUND_S = 2.0
"""Longest time that an operator's request waits for the engine's answer, in seconds."""
EXAMINE_S = 15.0
"""Longest time that the examination of a dead engine delays the next one, in seconds."""


@dataclass(eq=False)
class LocalSubmission(SessionSubmission):
    """One submission of a request to the supervised engine."""

    report: Callable[[EngineSession, str], None]
    """Report the loss of the session."""

    async def classify(self, error: RecoverableError) -> FailureKind:
        if not isinstance(error, EngineDead):
            raise error
        self.report(self.session, str(error))
        return self.session.failure


@dataclass(eq=False)
class SupervisedEngine(
    EnginePool, SupportsPlanning, SwapsDrafts, ScoresAnswers, DropsBlocks, CountsImages
):
    """Engine of one event loop that restarts its backend; see ``EnginePool``.

    It has itself those capabilities that must not fail or be forgotten with a backend.

    ``make`` creates the backend engines.
    """

    make: Callable[[], Engine]
    timeouts: SupervisionTimeouts = field(default_factory=SupervisionTimeouts)
    observer: RecoveryObserver = field(default_factory=RecoveryObserver)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._session: EngineSession | None = None
        self._reason = "Not started yet."
        self._frozen: int | None = None
        """The depth at which an operator holds the planner."""
        self._planning: Mapping[str, Any] = {}
        """Last description by the planner."""
        self._restarts = RestartPolicy(self.timeouts)
        self._isolation = PoisonIsolation()
        self._past_unclaimed = Totals()
        """Unclaimed counts of lost sessions."""
        self._watching: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._bounding: asyncio.Task[None] | None = None
        self._given_up = asyncio.Event()

    async def start(self) -> EngineInfo:
        engine = self.make()
        try:
            info = await self._start_engine(engine)
        except BaseException:
            await close_engine(engine)
            raise
        self._serve(engine, info)
        return info

    def capability(self, kind: Kind[T]) -> T | None:
        """Return this engine, or else what the running backend has; None while it restarts."""
        if (implementation := super().capability(kind)) is not None:
            return implementation
        session = self._live_session
        return None if session is None else session.engine.capability(kind)

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound every request's depth, on this engine and on later ones.

        Raises ValueError if the engine has no depth to set.
        """
        session = self._session
        if session is None:
            raise ValueError("no engine has started yet")
        if (engine := session.engine.capability(SupportsDepth)) is None:
            raise ValueError("this engine has no depth to set")
        previous_depth, self._depth = self._depth, depth
        bound = self._bound
        assert bound is not None
        if not session.lost:
            try:
                async with asyncio.timeout(BOUND_S):
                    return AppliedDepth(await engine.set_depth(bound))
            except ValueError:
                self._depth = previous_depth
                raise
            except (TimeoutError, EngineError):
                pass
        return AppliedDepth(min(bound, session.info.speculation.depth), pending=True)

    def _change_bound(self) -> None:
        if (session := self._live_session) is not None:
            self._bounding = asyncio.create_task(self._apply_bound(session))

    async def _apply_bound(self, session: EngineSession) -> None:
        """Apply the depth bound to the running engine. A lost engine gets no bound."""
        if (engine := session.engine.capability(SupportsDepth)) is None:
            log.error("this engine has no depth to bound: start it without its draft")
            return
        max_depth = session.info.speculation.depth
        try:
            await engine.set_depth(max_depth if self._bound is None else self._bound)
        except (ValueError, EngineError) as error:
            log.error("the depth was not bounded: %s", error)

    async def swap_draft(self, path: str, running_draft: str) -> float:
        """See ``engine.speculation.drafts.versions.SwapsDrafts``. A restarted engine starts with
        its own draft."""
        session = self._live_session
        if session is None:
            raise EngineDead(self._reason)
        if (engine := session.engine.capability(SwapsDrafts)) is None:
            raise EngineFailed("This engine cannot exchange its draft.")
        return await engine.swap_draft(path, running_draft)

    async def describe_planning(self, recent: int = 0) -> Mapping[str, Any]:
        """See ``engine.base.SupportsPlanning``. While the engine cannot answer, return its last
        description with the reason as ``stale``."""
        session = self._session
        if session is None or (engine := session.engine.capability(SupportsPlanning)) is None:
            return {}
        if session.lost:
            return self._recall_planning(session, self._reason)
        try:
            async with asyncio.timeout(BOUND_S):
                self._planning = await engine.describe_planning(recent)
        except (TimeoutError, EngineError) as error:
            timeout_reason = f"The engine did not answer within {BOUND_S:g} s."
            return self._recall_planning(session, str(error) or timeout_reason)
        return self._planning

    def _recall_planning(self, session: EngineSession, reason: str) -> Mapping[str, Any]:
        if not session.info.plans_depth:
            return {}
        return {"mode": "auto", **self._planning, "frozen": self._frozen, "stale": reason}

    async def freeze_planning(self, depth: int | None) -> bool:
        """Hold the planner of this engine and of later ones; return False if there is no planner.

        Does not wait for an engine that is restarting or slow to answer; the next engine is held.
        """
        session = self._session
        if session is None or session.engine.capability(SupportsPlanning) is None:
            return False
        is_frozen = await self._ask_planner(
            lambda engine: engine.freeze_planning(depth), session.info.plans_depth
        )
        if is_frozen:
            self._frozen = depth
        return is_frozen

    async def describe_slices(self) -> Sequence[Mapping[str, Any]]:
        """See ``engine.base.SupportsPlanning``. Empty while the engine cannot answer."""
        return await self._ask_planner(lambda engine: engine.describe_slices(), ())

    async def forget_tenants(self, tenants: Sequence[str]) -> None:
        """See ``engine.base.SupportsPlanning``. A new engine knows no tenants."""
        await self._ask_planner(lambda engine: engine.forget_tenants(tenants), None)

    async def _ask_planner(
        self, ask: Callable[[SupportsPlanning], Awaitable[Answer]], default: Answer
    ) -> Answer:
        """Return the running planner's answer, or ``default`` while the engine cannot answer."""
        session = self._live_session
        if session is not None and (engine := session.engine.capability(SupportsPlanning)):
            with suppress(TimeoutError, EngineError):
                async with asyncio.timeout(BOUND_S):
                    return await ask(engine)
        return default

    async def score(
        self,
        request: EngineRequest,
        answer: Sequence[int],
        dtype: str,
        pace: AuditPace = UNPACED,
    ) -> AnswerScores:
        """See ``engine.speculation.accounts.scores.ScoresAnswers``. Fails at once while the engine
        restarts.

        Raises EngineDead only if the engine died by itself. An engine that a signal from outside
        has ended proves nothing about the answer.
        """
        session = self._live_session
        if session is None:
            raise EngineFailed(self._reason)
        if (engine := session.engine.capability(ScoresAnswers)) is None:
            raise EngineFailed("This engine cannot score answers.")
        try:
            return await engine.score(request, answer, dtype, pace)
        except EngineDead as error:
            self._handle_death(session, str(error))
            if session.failure is FailureKind.KILLED:
                raise EngineFailed(str(error)) from None
            raise

    async def count_image(self, image: Image) -> int:
        """See ``eaglegate.engine.base.CountsImages``. Waits for the next engine after a loss.

        Raises EngineDead if none is ready in time.
        """
        session = await self._wait_session()
        if (engine := session.engine.capability(CountsImages)) is None:
            raise RequestRejected("This engine reads text only.", "images")
        return await engine.count_image(image)

    async def drop_blocks(self) -> int:
        """See ``eaglegate.engine.base.DropsBlocks``. Fails at once while the engine restarts."""
        session = self._live_session
        if session is None:
            raise EngineFailed(self._reason)
        if (engine := session.engine.capability(DropsBlocks)) is None:
            raise EngineFailed("This engine cannot drop cached blocks.")
        return await engine.drop_blocks()

    async def health(self) -> Health:
        """Answer at once from known state, whatever the engine does."""
        is_live = self._live_session is not None
        return Health(live=is_live, reason="" if is_live else self._reason)

    async def wait_failed(self) -> str:
        """Wait until the supervisor has given up, and return the reason."""
        await self._given_up.wait()
        return self._reason

    @property
    def unclaimed(self) -> Totals:
        return super().unclaimed + self._past_unclaimed

    async def aclose(self) -> None:
        self._give_up("The engine was closed.")
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.wait({self._replacing})
        session = self._session  # a lost session too: closing it may have been cut short
        if session is not None:
            session.lost = True
            self._stop_watching()
            await session.engine.aclose()

    @property
    def is_closed(self) -> bool:
        return self._given_up.is_set()

    def reset_failures(self) -> None:
        self._restarts.reset_failures()

    @asynccontextmanager
    async def submit(self, inflight: InFlightRequest) -> AsyncIterator[LocalSubmission]:
        rank = {"strikes": inflight.strikes, "submissions": inflight.submissions}
        async with self._isolation.admit(**rank) as pending_start:
            with await self._wait_session() as session:
                yield LocalSubmission(session, inflight, pending_start, self._handle_death)

    def _sessions(self) -> Iterable[EngineSession]:
        return () if self._live_session is None else (self._live_session,)

    @property
    def _live_session(self) -> EngineSession | None:
        return None if self._session is None or self._session.lost else self._session

    async def _wait_session(self) -> EngineSession:
        """Return the live session, and wait for a restart in progress. Raises EngineDead."""
        if self._session is None:
            raise EngineDead(self._reason)
        if (session := self._live_session) is not None:
            return session
        try:
            async with asyncio.timeout(self.timeouts.wait_s):
                while (session := self._live_session) is None:
                    if self.is_closed:
                        raise EngineDead(self._reason)
                    await self._changed.wait()
        except TimeoutError:
            raise EngineDead("No engine came back in time.") from None
        return session

    def _handle_death(self, session: EngineSession, reason: str) -> None:
        self._handle_loss(session, reason, cause=LossCause.DIED)

    def _handle_loss(self, session: EngineSession, reason: str, *, cause: LossCause) -> None:
        """Mark ``session`` as lost and begin to replace it. A second call does nothing."""
        if session.lost:
            return
        session.lost = True
        session.failure = _classify_loss(session, cause)
        self._past_unclaimed += session.unclaimed
        self._reason = f"The engine is being restarted ({cause}: {reason})"
        log.error("engine lost (%s): %s", cause, reason)
        self.observer.record_loss(cause)
        was_killed = session.failure is FailureKind.KILLED
        lived_s = now() - session.started_at
        self._restarts.record_end(lived_s, useful=session.useful, was_killed=was_killed)
        self._replacing = asyncio.create_task(self._replace(session, cause, reason))

    async def _replace(self, session: EngineSession, cause: LossCause, reason: str) -> None:
        lost_at = now()
        self._stop_watching()
        await close_engine(session.engine)
        await self._record_loss(session.engine, cause, reason, lost_at - session.started_at)
        while (info := await self._restart()) is None:
            if self.is_closed:
                return
        self.observer.record_recovery(info, now() - lost_at)
        log.warning("engine restarted after %.1f s", now() - lost_at)

    async def _record_loss(
        self, engine: Engine, cause: LossCause, reason: str, lived_s: float | None
    ) -> None:
        """Log how a closed engine ended, and record it for operators."""
        post_mortem = await _examine(engine)
        loss = create_loss(cause, reason, lived_s, post_mortem)
        self.losses.append(loss)
        lines = "".join(f"\n    {line}" for line in loss.log)
        log.error("cause of the engine loss: %s%s", loss.summary, lines)

    async def _restart(self) -> EngineInfo | None:
        """Try once to start an engine; return None if it failed or after too many failures."""
        if self._restarts.exhausted:
            self._give_up(
                f"The engine was lost {self._restarts.failures} times in a row without serving a "
                f"token and is not started again. The last time: {self.losses[-1].summary}"
            )
            return None
        await asyncio.sleep(self._restarts.pause_s)
        engine = None
        try:
            engine = self.make()
            info = await self._start_engine(engine)
            await self._apply_depth(engine)
        except asyncio.CancelledError:
            if engine is not None:
                await close_engine(engine)
            raise
        except Exception as error:
            await self._handle_start_failure(engine, error)
            return None
        self._serve(engine, info)
        return info

    async def _handle_start_failure(self, engine: Engine | None, error: Exception) -> None:
        """Record a failed start. Any error counts, because the next start may succeed."""
        is_engine_error = isinstance(error, EngineError)
        reason = str(error) if is_engine_error else type(error).__name__
        log.error("engine restart failed: %s", reason, exc_info=not is_engine_error)
        self.observer.record_loss(LossCause.START)
        self._restarts.record_start_failure()
        if engine is not None:
            await close_engine(engine)
            await self._record_loss(engine, LossCause.START, reason, None)
        self._reason = reason

    async def _start_engine(self, engine: Engine) -> EngineInfo:
        try:
            async with asyncio.timeout(self.timeouts.start_s):
                return await engine.start()
        except TimeoutError:
            raise EngineStartError(
                f"The engine was not ready after {self.timeouts.start_s:g} s, the longest a start "
                "may take (--engine-start-s)."
            ) from None

    async def _apply_depth(self, engine: Engine) -> None:
        """Give a new engine the depths that operators have set, including changes made
        meanwhile."""
        planning, bounds = engine.capability(SupportsPlanning), engine.capability(SupportsDepth)
        applied_setting: tuple[int | None, int | None] = (None, None)
        async with asyncio.timeout(self.timeouts.hang_s):
            while (setting := (self._frozen, self._bound)) != applied_setting:
                frozen, depth = setting
                if frozen != applied_setting[0] and planning is not None:
                    await planning.freeze_planning(frozen)
                if depth is not None and depth != applied_setting[1] and bounds is not None:
                    with suppress(ValueError):
                        await bounds.set_depth(depth)
                applied_setting = setting

    def _serve(self, engine: Engine, info: EngineInfo) -> None:
        self._info = info
        self._session = session = EngineSession(engine, info)
        self._watching = asyncio.create_task(self._watch(session))
        self._notify()

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self._given_up.set()
        self._notify()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, session: EngineSession) -> None:
        while not session.lost:
            await asyncio.sleep(self.timeouts.poll_s)
            cause, reason = await self._check(session)
            if cause is not None:
                self._handle_loss(session, reason, cause=cause)

    async def _check(self, session: EngineSession) -> tuple[LossCause | None, str]:
        """Return the cause and reason if the session is lost. A health check that fails proves
        nothing."""
        hang_s, stall_s = self.timeouts.hang_s, self.timeouts.stall_s
        try:
            async with asyncio.timeout(hang_s):
                health = await session.engine.health()
        except TimeoutError:
            return LossCause.HUNG, f"no answer for {hang_s:g} s"
        except Exception:
            log.exception("health check failed")
            return None, ""
        if not health.live:
            return LossCause.DIED, health.reason
        if session.stall_detector.stalled_s > stall_s:
            return LossCause.HUNG, f"no step for {stall_s:g} s"
        return None, ""


async def _examine(engine: Engine) -> PostMortem | None:
    """Describe how a closed engine ended. A failure here must not keep the next one from
    starting.
    """
    if (post_mortem := engine.capability(SupportsPostMortem)) is None:
        return None
    try:
        async with asyncio.timeout(EXAMINE_S):
            return await post_mortem.post_mortem()
    except Exception:
        log.exception("cause of the engine's exit could not be determined")
        return None


def _classify_loss(session: EngineSession, cause: LossCause) -> FailureKind:
    """Classify a loss for the requests that run in the session, before it is closed."""
    process = session.engine.capability(SupportsKilled)
    if process is not None and process.killed:
        return FailureKind.KILLED
    is_shared = cause is LossCause.HUNG and session.is_shared
    return FailureKind.HUNG if is_shared else FailureKind.DIED
