"""One worker: asked for its health, left alone while it fails, probed before it serves again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from engine.base import Engine, SupportsCounters
from engine.errors import EngineError
from engine.fleet.breaker import CircuitBreaker, CircuitState
from engine.fleet.routing import RoutingReason
from engine.fleet.session import WorkerSession, close_engine
from engine.fleet.settings import FleetSettings
from engine.speculation.accounting import Totals
from engine.supervision.isolation import PoisonIsolation
from engine.supervision.policy import LossCause, now
from engine.types import EngineInfo, EngineRequest, Health, Sampling

log = logging.getLogger(__name__)

PROBE_PROMPT = (1, 2, 3, 4)


class IncompatibleWorker(EngineError):
    """The worker serves something else than the others."""


class WorkerState(StrEnum):
    """What a worker does, as people and metrics are told."""

    SERVING = "serving"
    PROBING = "probing"
    """Starting, or coming back: it has not passed its probe yet."""
    OPEN = "open"
    """Left alone for a while."""
    DRAINING = "draining"
    """No longer wanted: it ends what it runs."""


@dataclass(slots=True)
class WorkerCounters:
    """What became of the requests that were given to a worker."""

    why: Counter[RoutingReason] = field(default_factory=Counter)
    """How many it was given, by what decided so."""
    tokens: int = 0
    retried: int = 0
    """Went to another one before they had made a token anywhere."""
    continued: int = 0
    """Went on in another one behind the tokens they had."""


@dataclass(eq=False)
class Worker:
    """``make`` makes an engine for its name. ``accept`` is asked about every engine that has
    started, and raises Misfit. ``changed`` is called when it begins or ceases to serve, and before
    that ``given_up`` when its circuit opens.
    """

    name: str
    make: Callable[[str], Engine]
    rules: FleetSettings
    stall_s: float
    accept: Callable[[EngineInfo], None]
    changed: Callable[[Worker], None]
    given_up: Callable[[Worker, LossCause], None]
    breaker: CircuitBreaker = field(init=False)
    isolation: PoisonIsolation = field(default_factory=PoisonIsolation)
    link: WorkerSession | None = None
    reason: str = "not asked yet"
    """Why it does not serve."""
    draining: bool = False
    counted: Totals | None = None
    """What it says itself of its speculation."""
    counts: WorkerCounters = field(default_factory=WorkerCounters)

    def __post_init__(self) -> None:
        self.breaker = CircuitBreaker(self.rules.breaker)
        self._asked: asyncio.Task[Health] | None = None
        self._tending: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        self._missed = 0
        self._count_at = 0.0

    @property
    def is_serving(self) -> bool:
        return self.link is not None and self.breaker.closed and not self.draining

    @property
    def state(self) -> WorkerState:
        if self.draining:
            return WorkerState.DRAINING
        if self.breaker.circuit is CircuitState.OPEN:
            return WorkerState.OPEN
        return WorkerState.SERVING if self.is_serving else WorkerState.PROBING

    def begin(self) -> None:
        """Tend it from now on."""
        self._tending = asyncio.create_task(self._tend())

    async def aclose(self) -> None:
        """What runs in it ends with EngineDead."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        link, self.link = self.link, None
        if link is not None:
            link.cut()
            await link.closed.wait()

    async def _tend(self) -> None:
        """For as long as the process lives: what goes wrong in here is a failed probe."""
        while True:
            try:
                await self._tend_once()
            except Exception:
                log.exception("maintenance of worker %s failed; it goes on", self.name)
                await asyncio.sleep(self.rules.poll_s)

    async def _tend_once(self) -> None:
        if self.breaker.closed:
            await self._rest()
            await self._look_after()
        else:
            await asyncio.sleep(max(0.0, self.breaker.retry_at - now()))
            await self._admit()

    def failed(self, reason: str) -> None:
        """A request failed through this worker's fault: have a look at it."""
        was_closed = self.breaker.closed
        self.breaker.failed(now())
        if was_closed and not self.breaker.closed:
            failures = self.rules.breaker.failures
            self._out(f"{failures} requests in a row failed: {reason}", LossCause.DIED)
        self._nudged.set()

    async def ask(self) -> Health:
        """For its health, once for all who want to know; no answer is a bad one."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asked)

    @property
    def idle(self) -> bool:
        return self.link is None or not self.link.stall_detector.num_running

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rules.poll_s):
                await self._nudged.wait()
        self._nudged.clear()

    async def _look_after(self) -> None:
        link = self.link
        if link is None or not self.breaker.closed:
            return
        health = await self.ask()
        self._missed = 0 if health.live else self._missed + 1
        if self._missed >= self.rules.missed:
            self._give_up(health.reason, LossCause.DIED)
        elif not health.live:
            self._nudged.set()
            await asyncio.sleep(self.rules.pause_s)
        elif link.stall_detector.stalled_s > self.stall_s:
            self._give_up(f"no step for {self.stall_s:g} s", LossCause.HUNG)
        elif now() >= self._count_at:
            await self._count(link.engine)

    async def _count(self, engine: Engine) -> None:
        """Ask for its own counters, if it has any; those it had stand when it does not answer."""
        self._count_at = now() + self.rules.count_s
        if not isinstance(engine, SupportsCounters):
            return
        try:
            async with asyncio.timeout(self.rules.ask_s):
                self.counted = await engine.counted()
        except (EngineError, TimeoutError) as error:
            log.debug("worker %s does not tell its counters: %s", self.name, error)

    def _give_up(self, reason: str, cause: LossCause) -> None:
        """It is dead or hangs: its requests go on elsewhere."""
        link, self.link = self.link, None
        if link is not None:
            link.stalled = link.stall_detector.num_running > 1
            link.cut()
        self.breaker.open(now())
        self._out(reason, cause)

    def _out(self, reason: str, cause: LossCause) -> None:
        log.error("circuit opened for worker %s: %s", self.name, reason)
        self.reason = reason
        self.given_up(self, cause)
        self.changed(self)

    async def _ask(self) -> Health:
        if self.link is None:
            return Health(live=False, reason=self.reason)
        try:
            async with asyncio.timeout(self.rules.ask_s):
                return await self.link.engine.health()
        except TimeoutError:
            return Health(live=False, reason=f"no answer for {self.rules.ask_s:g} s")
        except EngineError as error:
            return Health(live=False, reason=str(error))
        except Exception as error:
            log.exception("worker %s could not be asked for its health", self.name)
            return Health(live=False, reason=f"not known: {type(error).__name__}")

    async def _admit(self) -> None:
        """Probe it through an engine of its own, and let it serve if it passes."""
        self.breaker.probe()
        try:
            engine = self.make(self.name)
        except Exception as error:
            log.exception("no engine can be made for worker %s", self.name)
            self._not_admitted(f"no engine can be made for it: {type(error).__name__}")
            return
        try:
            async with asyncio.timeout(self.rules.admit_s):
                info = await engine.start()
                self.accept(info)
                await _makes_a_token(engine)
        except (EngineError, TimeoutError) as error:
            await close_engine(engine)
            self._not_admitted(str(error) or f"no token for {self.rules.admit_s:g} s")
        except asyncio.CancelledError:
            await close_engine(engine)
            raise
        except Exception as error:
            log.exception("the probe of worker %s failed in an unforeseen way", self.name)
            await close_engine(engine)
            self._not_admitted(f"its probe failed: {type(error).__name__}")
        else:
            self._admitted(WorkerSession(engine, info))

    def _not_admitted(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("worker %s does not serve: %s", self.name, reason)
        self.reason = reason
        self.breaker.open(now())
        self.changed(self)

    def _admitted(self, link: WorkerSession) -> None:
        if self.link is not None:
            self.link.retire()
        self.link, self.reason, self._missed = link, "", 0
        self.breaker.close()
        log.info("worker %s serves", self.name)
        self.changed(self)


async def _makes_a_token(engine: Engine) -> None:
    """Health is what a worker says; a token is what it can do."""
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
    request = EngineRequest("eaglegate-probe", PROBE_PROMPT, sampling, depth=0)
    async for _ in engine.generate(request):
        pass
