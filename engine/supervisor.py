"""Keeps an engine alive, and its requests across its deaths.

The supervisor is an engine made of engines, one life after another. It asks the engine at hand for
its health and watches that steps are made; one that died or hung is closed and replaced, with a
pause that grows from failure to failure, until too many in a row make it give up. Requests wait
for the next life and go on in it; one that kills engines is found (``supervision/recovery.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from engine.base import (
    AppliedDepth,
    Engine,
    SupportsDepth,
    SupportsKilled,
    SupportsPostMortem,
    SupportsUnclaimed,
)
from engine.errors import EngineDead, EngineError, EngineStartError
from engine.speculation.accounting import Totals
from engine.supervision.continuation import is_seeded
from engine.supervision.isolation import PendingStart, PoisonIsolation
from engine.supervision.losses import LossLog, create_loss
from engine.supervision.policy import (
    LossCause,
    NullRecoveryObserver,
    RecoveryObserver,
    RestartPolicy,
    StallDetector,
    SupervisionTimeouts,
    now,
)
from engine.supervision.recovery import (
    FailureKind,
    InFlightRequest,
    RecoverableError,
    RequestRecovery,
)
from engine.types import EngineInfo, EngineRequest, Health, Step

log = logging.getLogger(__name__)

CLOSE_S = 30.0
"""A dead engine that cannot be closed in this time is left behind."""
BOUND_S = 2.0
"""An engine confirms a bound on depth in this time, or later."""


@dataclass(slots=True, eq=False)
class EngineInstance:
    """One engine, from ready to lost."""

    engine: Engine
    began: float
    watch: asyncio.Task[None] = field(init=False)
    stall_detector: StallDetector = field(default_factory=StallDetector)
    num_delivered: int = 0
    """Tokens that clients got of it."""
    lost: bool = False
    failure: FailureKind = FailureKind.DIED
    """Of the requests that were in it."""


@dataclass(slots=True, eq=False)
class EngineSubmission:
    """See ``engine.supervision.recovery.Place``: one submission of a request to one life."""

    life: EngineInstance
    pending: PendingStart
    report: Callable[[EngineInstance, str], None]
    """What to tell of the life's end."""

    @property
    def engine(self) -> Engine:
        return self.life.engine

    @property
    def started(self) -> bool:
        return self.pending.started

    def record_step(self, _: Step) -> None:
        self.life.stall_detector.record_step()
        self.pending.confirm()

    def record_delivery(self, step: Step) -> None:
        self.life.num_delivered += len(step.token_ids)

    async def classify(self, error: RecoverableError) -> FailureKind:
        if not isinstance(error, EngineDead):
            raise error
        self.report(self.life, str(error))
        return self.life.failure


@dataclass(eq=False)
class SupervisedEngine:
    """See ``engine.base.Engine``; ``make`` makes the engines. One event loop."""

    make: Callable[[], Engine]
    timeouts: SupervisionTimeouts = field(default_factory=SupervisionTimeouts)
    observer: RecoveryObserver = field(default_factory=NullRecoveryObserver)

    def __post_init__(self) -> None:
        self._info: EngineInfo | None = None
        self._life: EngineInstance | None = None
        self._changed = asyncio.Event()
        self._reason = "Not started yet."
        self._restarts = RestartPolicy(self.timeouts)
        self._depth: int | None = None
        self._losses = LossLog()
        self._unclaimed = Totals()
        """Of past lives."""
        self._probation = PoisonIsolation()
        self._survival = RequestRecovery(self, self.timeouts, self.observer)
        self._replacing: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        """There will be no engine any more."""

    async def start(self) -> EngineInfo:
        engine = self.make()
        self._info = await self._started(engine)
        self._begin(engine)
        return self._info

    def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        return self._survival.generate(self._fixed(request))

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound every request's depth, now and in engines to come."""
        life = self._life
        if life is None or self._info is None:
            raise ValueError("no engine has started yet")
        if not isinstance(life.engine, SupportsDepth):
            raise ValueError("this engine has no depth to set")
        self._depth = depth
        if not life.lost:
            with suppress(TimeoutError, EngineError):
                async with asyncio.timeout(BOUND_S):
                    return AppliedDepth(await life.engine.set_depth(depth))
        return AppliedDepth(min(depth, self._info.speculation.depth), pending=True)

    async def health(self) -> Health:
        """From what is known: this answers at once, whatever the engine does."""
        live = self._alive is not None
        return Health(live=live, reason="" if live else self._reason)

    async def wait_failed(self) -> str:
        """Return, with the reason, when there will be no engine any more."""
        await self._over.wait()
        return self._reason

    @property
    def unclaimed(self) -> Totals:
        """Steps whose tokens went to nobody: those of replays, and those the engines count."""
        life = self._alive
        current = Totals() if life is None else _unclaimed(life.engine)
        return self._unclaimed + self._survival.replayed + current

    @property
    def losses(self) -> LossLog:
        """How the last engines were lost, oldest first."""
        return self._losses

    async def aclose(self) -> None:
        life = self._alive
        self._end("The engine was closed.")
        if self._replacing is not None:
            self._replacing.cancel()
            with suppress(asyncio.CancelledError):
                await self._replacing
        if life is not None:
            life.lost = True
            life.watch.cancel()
            await life.engine.aclose()

    @property
    def accounts(self) -> bool:
        return self._info is None or self._info.reports_decode_steps

    @property
    def is_closed(self) -> bool:
        return self._over.is_set()

    def reset_failures(self) -> None:
        """See ``engine.supervision.recovery.Host``."""
        self._restarts.reset_failures()

    @asynccontextmanager
    async def submit(self, inflight: InFlightRequest) -> AsyncIterator[EngineSubmission]:
        rank = {"strikes": inflight.strikes, "submissions": inflight.submissions}
        async with self._probation.admit(**rank) as trial:
            life = await self._living()
            with life.stall_detector.track():
                yield EngineSubmission(life, trial, partial(self._lost, cause=LossCause.DIED))

    def _fixed(self, request: EngineRequest) -> EngineRequest:
        """A seeded request keeps the depth it begins with.

        Each draft that is verified takes numbers from the seed's generator: at another depth the
        same seed gives another text, and a replay would not repeat what was delivered.
        """
        most = 0 if self._info is None else self._info.speculation.depth
        if not most or not is_seeded(request):
            return request
        depths = (request.depth, self._depth, most)
        depth = min(depth for depth in depths if depth is not None)
        return replace(request, depth=depth, keeps_depth=True)

    @property
    def _alive(self) -> EngineInstance | None:
        return None if self._life is None or self._life.lost else self._life

    async def _living(self) -> EngineInstance:
        """The engine at hand; waits for one that is on its way. Raises EngineDead."""
        if self._info is None:
            raise EngineDead(self._reason)
        try:
            async with asyncio.timeout(self.timeouts.wait_s):
                while (life := self._alive) is None:
                    if self._over.is_set():
                        raise EngineDead(self._reason)
                    await self._changed.wait()
        except TimeoutError:
            raise EngineDead("No engine came back in time.") from None
        return life

    def _lost(self, life: EngineInstance, reason: str, *, cause: LossCause) -> None:
        """Begin to replace ``life``, once."""
        if life.lost:
            return
        life.lost = True
        life.failure = _fate(life, cause)
        self._unclaimed += _unclaimed(life.engine)
        self._reason = f"The engine is being restarted ({cause}: {reason})"
        log.error("the engine was lost (%s): %s", cause, reason)
        self.observer.record_loss(cause)
        self._restarts.record_end(
            now() - life.began,
            useful=life.num_delivered > 0,
            killed=life.failure is FailureKind.KILLED,
        )
        self._replacing = asyncio.create_task(self._replace(life, cause, reason))

    async def _replace(self, life: EngineInstance, cause: LossCause, reason: str) -> None:
        lost_at = now()
        life.watch.cancel()
        await _close(life.engine)
        await self._record(life.engine, cause, reason, lost_at - life.began)
        while (info := await self._try_again()) is None:
            if self._over.is_set():
                return
        self.observer.record_recovery(info, now() - lost_at)
        log.warning("the engine is back after %.1f s", now() - lost_at)

    async def _record(
        self, engine: Engine, cause: LossCause, reason: str, lived_s: float | None
    ) -> None:
        """Log how a closed engine ended, and remember it for operators."""
        found = await engine.post_mortem() if isinstance(engine, SupportsPostMortem) else None
        loss = create_loss(cause, reason, lived_s, found)
        self._losses.add(loss)
        words = "".join(f"\n    {line}" for line in loss.log)
        log.error("cause of the engine's end: %s%s", loss.summary, words)

    async def _try_again(self) -> EngineInfo | None:
        if self._restarts.exhausted:
            self._end(
                f"The engine was lost {self._restarts.failures} times in a row without serving a "
                f"token and is not started again. The last time: {self._losses.last.summary}"
            )
            return None
        await asyncio.sleep(self._restarts.pause_s)
        try:
            engine = self.make()
        except Exception as error:
            await self._start_failed(None, error)
            return None
        try:
            info = await self._started(engine)
            await self._bind(engine)
        except Exception as error:
            await self._start_failed(engine, error)
            return None
        self._info = info
        self._begin(engine)
        return info

    async def _start_failed(self, engine: Engine | None, error: Exception) -> None:
        """Whatever went wrong: the next start may go well."""
        told = str(error) if isinstance(error, EngineError) else type(error).__name__
        expected = isinstance(error, EngineError)
        log.error("the engine did not start again: %s", told, exc_info=not expected)
        self.observer.record_loss(LossCause.START)
        self._restarts.record_start_failure()
        if engine is not None:
            await _close(engine)
            await self._record(engine, LossCause.START, told, None)
        self._reason = told

    async def _started(self, engine: Engine) -> EngineInfo:
        try:
            async with asyncio.timeout(self.timeouts.start_s):
                return await engine.start()
        except TimeoutError:
            raise EngineStartError(
                f"The engine was not ready after {self.timeouts.start_s:g} s, the longest a start "
                "may take (--engine-start-s)."
            ) from None

    async def _bind(self, engine: Engine) -> None:
        """Give a new engine the bound in force, also one that comes meanwhile."""
        if not isinstance(engine, SupportsDepth):
            return
        given = None
        async with asyncio.timeout(self.timeouts.hang_s):
            while (wanted := self._depth) is not None and wanted != given:
                await engine.set_depth(wanted)
                given = wanted

    def _begin(self, engine: Engine) -> None:
        self._life = life = EngineInstance(engine, began=now())
        life.watch = asyncio.create_task(self._watch(life))
        self._tell()

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._over.set()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _watch(self, life: EngineInstance) -> None:
        while not life.lost:
            await asyncio.sleep(self.timeouts.poll_s)
            cause, reason = await self._ask(life)
            if cause is not None:
                self._lost(life, reason, cause=cause)

    async def _ask(self, life: EngineInstance) -> tuple[LossCause | None, str]:
        patience = self.timeouts
        try:
            async with asyncio.timeout(patience.hang_s):
                health = await life.engine.health()
        except TimeoutError:
            return LossCause.HUNG, f"no answer for {patience.hang_s:g} s"
        except Exception:
            log.exception("the engine's health is not known")
            return None, ""
        if not health.live:
            return LossCause.DIED, health.reason
        if life.stall_detector.stalled_s > patience.stall_s:
            return LossCause.HUNG, f"no step for {patience.stall_s:g} s"
        return None, ""


async def _close(engine: Engine) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await engine.aclose()
    except TimeoutError:
        log.error("the lost engine could not be closed in %g s", CLOSE_S)
    except Exception:
        log.exception("the lost engine could not be closed")


def _fate(life: EngineInstance, cause: LossCause) -> FailureKind:
    """What a loss says about the requests that were in it, before it is closed."""
    if isinstance(life.engine, SupportsKilled) and life.engine.killed:
        return FailureKind.KILLED
    crowded = life.stall_detector.num_running > 1
    return FailureKind.HUNG if cause is LossCause.HUNG and crowded else FailureKind.DIED


def _unclaimed(engine: Engine) -> Totals:
    return engine.unclaimed if isinstance(engine, SupportsUnclaimed) else Totals()
