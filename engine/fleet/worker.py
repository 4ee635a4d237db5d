"""One worker: health checks, a circuit breaker, and a probe before it serves again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from random import random

from eaglegate.engine.base import Engine, SupportsCounters
from eaglegate.engine.errors import EngineError
from eaglegate.engine.fleet.types import (
    BreakerSettings,
    FindingKind,
    FleetSettings,
    WorkerCounters,
    WorkerFinding,
    WorkerState,
)
from eaglegate.engine.steps import NullSink
from eaglegate.engine.supervision.policy import LossCause, now
from eaglegate.engine.supervision.pool import EngineSession, PoisonIsolation, close_engine
from eaglegate.engine.supervision.recovery import FailureKind
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import VERSION, EngineInfo, EngineRequest, Health, Sampling

log = logging.getLogger(__name__)

InspectWorker = Callable[[Engine, EngineInfo], Awaitable[Sequence[WorkerFinding]]]
"""Tests a worker with a few small requests. Bounded in time; raises nothing."""
PROBE_PROMPT = (1, 2, 3, 4)
CLOSE_S = 10.0
"""A worker's engine object that does not close in this time is abandoned."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's answer to ``eaglegate check``."""

    info: EngineInfo
    findings: tuple[WorkerFinding, ...] = ()


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """State that decides if a worker gets requests. ``now`` is any clock in seconds.

        closed    -> open        several requests failed in a row, or the worker was lost
        open      -> half-open   the backoff has passed
        half-open -> closed      the probe passed
        half-open -> open        the probe failed; the backoff doubles

    It begins half-open, because a new worker must pass a probe as well. While half-open it admits
    only the fleet's own probe, so a client's request never tests a worker.
    """

    def __init__(self, settings: BreakerSettings, chance: Callable[[], float] = random) -> None:
        self._settings = settings
        self._chance = chance
        self._failures = 0
        self._trouble = 0
        """Openings since the last request that succeeded."""
        self.state = CircuitState.HALF_OPEN
        self.retry_at = 0.0
        self.num_opened = 0

    @property
    def is_closed(self) -> bool:
        return self.state is CircuitState.CLOSED

    def record_success(self) -> None:
        """Record that a request made progress."""
        self._failures = self._trouble = 0

    def record_failure(self, now: float) -> None:
        """Record that a request failed through the worker's fault."""
        self._failures += 1
        if self.is_closed and self._failures >= self._settings.failures:
            self.open(now)

    def open(self, now: float) -> None:
        """Send no requests until a probe passes."""
        self.num_opened += self.is_closed
        self.state = CircuitState.OPEN
        self.retry_at = now + self._backoff_s()
        self._trouble += 1

    def begin_probe(self) -> None:
        """Admit the fleet's probe after the backoff."""
        self.state = CircuitState.HALF_OPEN

    def close(self) -> None:
        """Admit requests again after a probe that passed."""
        self.state = CircuitState.CLOSED
        self._failures = 0

    def _backoff_s(self) -> float:
        settings = self._settings
        max_wait_s = min(settings.max_backoff_s, settings.backoff_s * 2.0 ** min(self._trouble, 32))
        return max_wait_s * (1 - settings.jitter * self._chance())


class IncompatibleWorker(EngineError):
    """The worker's model or capabilities differ from the other workers'."""


@dataclass(eq=False)
class Worker:
    """One worker of a fleet. ``make`` creates an engine for ``name``.

    ``check_fit`` is called with every engine that has started, and raises IncompatibleWorker.
    ``on_change`` is called when the worker begins or ceases to serve. ``on_loss`` is called before
    it when the worker's circuit opens.
    """

    name: str
    make: Callable[[str], Engine]
    settings: FleetSettings
    stall_s: float
    check_fit: Callable[[EngineInfo], None]
    on_change: Callable[[Worker], None]
    on_loss: Callable[[Worker, LossCause], None]
    inspect: InspectWorker | None = None
    """Inspects a worker that can serve; None skips the inspection."""
    breaker: CircuitBreaker = field(init=False)
    isolation: PoisonIsolation = field(default_factory=PoisonIsolation)
    session: EngineSession | None = None
    reason: str = "not asked yet"
    """Reason why the worker does not serve."""
    draining: bool = False
    counted: Totals | None = None
    """The worker's own speculation counters."""
    findings: tuple[WorkerFinding, ...] = ()
    """Faults that the last inspection found."""
    alarms: dict[FindingKind, WorkerFinding] = field(default_factory=dict)
    """Faults that were found while it served."""
    counts: WorkerCounters = field(default_factory=WorkerCounters)

    def __post_init__(self) -> None:
        self.breaker = CircuitBreaker(self.settings.breaker)
        self._checking: asyncio.Task[Health] | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._inspection: asyncio.Task[None] | None = None
        self._check_soon = asyncio.Event()
        self._missed = 0
        self._count_at = 0.0

    @property
    def is_serving(self) -> bool:
        return self.session is not None and self.breaker.is_closed and not self.draining

    @property
    def version(self) -> str | None:
        """The version of its server; None while it does not serve, or if it names none."""
        return None if self.session is None else self.session.info.details.get(VERSION)

    @property
    def is_idle(self) -> bool:
        return self.session is None or self.session.is_idle

    @property
    def state(self) -> WorkerState:
        if self.draining:
            return WorkerState.DRAINING
        if self.breaker.state is CircuitState.OPEN:
            return WorkerState.OPEN
        return WorkerState.SERVING if self.is_serving else WorkerState.PROBING

    def start(self) -> None:
        """Start the maintenance task."""
        self._maintenance = asyncio.create_task(self._maintain())

    async def aclose(self) -> None:
        """Close the worker. Its in-flight requests end with EngineDead."""
        tasks = [task for task in (self._maintenance, self._inspection) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session, self.session = self.session, None
        if session is not None:
            session.close()
            await session.closed.wait()

    def record_failure(self, reason: str) -> None:
        """Record that a request failed through this worker's fault, and check its health soon."""
        was_closed = self.breaker.is_closed
        self.breaker.record_failure(now())
        if was_closed and not self.breaker.is_closed:
            failures = self.settings.breaker.failures
            self._report_loss(f"{failures} requests in a row failed: {reason}", LossCause.DIED)
        self._check_soon.set()

    async def check_health(self) -> Health:
        """Check the worker's health; no answer counts as not live. Concurrent callers share one
        check."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._ask_health())
        return await asyncio.shield(self._checking)

    async def _maintain(self) -> None:
        """Maintain the worker until the task is cancelled. No error ends the loop."""
        while True:
            try:
                await self._maintain_once()
            except Exception:
                log.exception("maintenance of worker %s failed; it continues", self.name)
                await asyncio.sleep(self.settings.poll_s)

    async def _maintain_once(self) -> None:
        if self.breaker.is_closed:
            await self._wait_next_check()
            await self._supervise()
        else:
            await asyncio.sleep(max(0.0, self.breaker.retry_at - now()))
            await self._probe()

    async def _wait_next_check(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.poll_s):
                await self._check_soon.wait()
        self._check_soon.clear()

    async def _supervise(self) -> None:
        session = self.session
        if session is None or not self.breaker.is_closed:
            return
        health = await self.check_health()
        self._missed = 0 if health.live else self._missed + 1
        if self._missed >= self.settings.missed:
            self._drop_session(health.reason, LossCause.DIED)
        elif not health.live:
            self._check_soon.set()
            await asyncio.sleep(self.settings.pause_s)
        elif session.stall_detector.stalled_s > self.stall_s:
            self._drop_session(f"no step for {self.stall_s:g} s", LossCause.HUNG)
        elif now() >= self._count_at:
            await self._read_counters(session.engine)

    async def _read_counters(self, engine: Engine) -> None:
        """Read the worker's own counters, if it has any. Without an answer the last ones stay."""
        self._count_at = now() + self.settings.count_s
        if (counting := engine.capability(SupportsCounters)) is None:
            return
        try:
            async with asyncio.timeout(self.settings.ask_s):
                self.counted = await counting.read_counters()
        except (EngineError, TimeoutError) as error:
            log.debug("counters of worker %s could not be read: %s", self.name, error)

    def _drop_session(self, reason: str, cause: LossCause) -> None:
        """Drop the session of a worker that died or hangs. Its requests continue elsewhere."""
        session, self.session = self.session, None
        if session is not None:
            session.failure = FailureKind.HUNG if session.is_shared else FailureKind.DIED
            session.close()
        self.breaker.open(now())
        self._report_loss(reason, cause)

    def _report_loss(self, reason: str, cause: LossCause) -> None:
        log.error("circuit opened for worker %s: %s", self.name, reason)
        self.reason = reason
        self.on_loss(self, cause)
        self.on_change(self)

    async def _ask_health(self) -> Health:
        if self.session is None:
            return Health(live=False, reason=self.reason)
        try:
            async with asyncio.timeout(self.settings.ask_s):
                return await self.session.engine.health()
        except TimeoutError:
            return Health(live=False, reason=f"no answer for {self.settings.ask_s:g} s")
        except EngineError as error:
            return Health(live=False, reason=str(error))
        except Exception as error:
            log.exception("health check of worker %s failed", self.name)
            return Health(live=False, reason=f"not known: {type(error).__name__}")

    async def _probe(self) -> None:
        """Start an engine object for the worker, and admit the worker if it generates a token."""
        self.breaker.begin_probe()
        try:
            engine = self.make(self.name)
        except Exception as error:
            log.exception("no engine can be made for worker %s", self.name)
            self._reject(f"no engine can be made for it: {type(error).__name__}")
            return
        try:
            async with asyncio.timeout(self.settings.admit_s):
                info = await engine.start()
                self.check_fit(info)
                await _generate_token(engine)
            await self._inspect(engine, info)
        except (EngineError, TimeoutError) as error:
            await close_engine(engine, CLOSE_S)
            self._reject(str(error) or f"no token for {self.settings.admit_s:g} s")
        except asyncio.CancelledError:
            await close_engine(engine, CLOSE_S)
            raise
        except Exception as error:
            log.exception("probe of worker %s failed unexpectedly", self.name)
            await close_engine(engine, CLOSE_S)
            self._reject(f"its probe failed: {type(error).__name__}")
        else:
            self._admit(EngineSession(engine, info, CLOSE_S))

    async def _inspect(self, engine: Engine, info: EngineInfo) -> None:
        """Inspect a worker before it joins. A worker that comes back serves during the
        inspection."""
        if self.inspect is None:
            return
        joins, previous_inspection = self._inspection is None, self._inspection
        if previous_inspection is not None:
            previous_inspection.cancel()
        self._inspection = asyncio.create_task(self._record_findings(self.inspect(engine, info)))
        if joins:
            await asyncio.shield(self._inspection)

    async def _record_findings(self, findings: Awaitable[Sequence[WorkerFinding]]) -> None:
        try:
            self.findings = tuple(await findings)
        except Exception:
            log.exception("inspection of worker %s failed; it serves anyway", self.name)
        for finding in self.findings:
            log.warning("worker %s: %s: %s", self.name, finding.kind.value, finding.text)

    def _reject(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("worker %s does not serve: %s", self.name, reason)
        self.reason = reason
        self.breaker.open(now())
        self.on_change(self)

    def _admit(self, session: EngineSession) -> None:
        if self.session is not None:
            self.session.retire()
        self.session, self.reason, self._missed = session, "", 0
        self.breaker.close()
        log.info("circuit closed: worker %s serves", self.name)
        self.on_change(self)


async def _generate_token(engine: Engine) -> None:
    """Generate one token, because a worker may report health and still not generate."""
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
    request = EngineRequest("eaglegate-probe", PROBE_PROMPT, sampling, depth=0)
    await engine.generate(request, NullSink())
