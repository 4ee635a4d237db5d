"""Many workers as one engine.

Sources say who the workers are (``discovery``), each is tended by itself (``worker.py``), and a
request goes to the one the balancer picks (``routing.py``). Where a worker is lost, its requests
go on in another one by the same rules by which a supervisor continues them in its next engine
(``engine/supervision/recovery.py``). The supervisor restarts the engine it has; a fleet restarts
nothing: it leaves a worker alone and probes it until it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine.base import AppliedDepth, Engine, SupportsUnclaimed
from engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    EngineStartError,
    EngineUnreachable,
    RequestRejected,
)
from engine.fleet.discovery import DiscoveryError, WorkerSource
from engine.fleet.routing import Assignment, LoadBalancer, RoutingReason
from engine.fleet.session import WorkerSession
from engine.fleet.settings import FleetSettings
from engine.fleet.status import WorkerStatus
from engine.fleet.worker import IncompatibleWorker, Worker
from engine.speculation.accounting import Totals
from engine.supervision.isolation import PendingStart
from engine.supervision.losses import LossLog, create_loss
from engine.supervision.policy import (
    LossCause,
    NullRecoveryObserver,
    RecoveryObserver,
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

SHOWN = 3
"""Workers whose reasons are told when none serves."""


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """See ``engine.supervision.recovery.Place``: one submission of a request to one worker."""

    fleet: Fleet
    inflight: InFlightRequest
    worker: Worker
    link: WorkerSession
    pending: PendingStart
    assignment: Assignment

    @property
    def engine(self) -> Engine:
        return self.link.engine

    @property
    def started(self) -> bool:
        return self.pending.started

    def record_step(self, step: Step) -> None:
        if not self.pending.started:
            self.worker.breaker.succeeded()
            self.pending.confirm()
            self.inflight.disprove_refusals()
        self.link.stall_detector.record_step()
        self.assignment.charge.record_tokens(len(step.token_ids))
        self.worker.counts.tokens += len(step.token_ids)

    def record_delivery(self, step: Step) -> None:
        """The balancer counts what the worker made, delivered or not."""

    async def classify(self, error: RecoverableError) -> FailureKind:
        self.inflight.avoided.add(self.link)
        fate = await self._fate(error)
        if self.inflight.has_output:
            self.worker.counts.continued += 1
        else:
            self.worker.counts.retried += 1
        return fate

    async def _fate(self, error: RecoverableError) -> FailureKind:
        if isinstance(error, EngineOverloaded):
            if not self.inflight.has_output and not self.fleet.others(self.inflight):
                raise error
            return FailureKind.NOT_RUN
        if isinstance(error, RequestRejected):
            return self._doubt(error)
        self.worker.failed(str(error))
        if isinstance(error, EngineUnreachable):
            return FailureKind.NOT_RUN
        if not (await self.worker.ask()).live:
            return FailureKind.HUNG if self.link.stalled else FailureKind.DIED
        if isinstance(error, EngineFailed):
            self._try_elsewhere(error)
        return FailureKind.REQUEST_LOST

    def _doubt(self, error: RequestRejected) -> FailureKind:
        """One worker's word is not enough: if another one runs the request, the first was wrong."""
        if (
            self.inflight.has_output
            or self.inflight.refusals
            or not self.fleet.others(self.inflight)
        ):
            raise error
        wrong = f"it refused a request that another worker ran: {error}"
        self.inflight.refusals.append(partial(self.worker.failed, wrong))
        return FailureKind.NOT_RUN

    def _try_elsewhere(self, error: EngineFailed) -> None:
        """A living worker failed on it: others may, too."""
        self.inflight.failures += 1
        tried_enough = self.inflight.failures > self.fleet.rules.retries
        if tried_enough or not self.fleet.others(self.inflight):
            raise error


@dataclass(eq=False)
class Fleet:
    """See ``engine.base.Engine``; ``make`` makes an engine for an address. One event loop."""

    make: Callable[[str], Engine]
    sources: Sequence[WorkerSource]
    timeouts: SupervisionTimeouts = field(default_factory=SupervisionTimeouts)
    rules: FleetSettings = field(default_factory=FleetSettings)
    observer: RecoveryObserver = field(default_factory=NullRecoveryObserver)

    def __post_init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self._balancer = LoadBalancer(self.rules.balance)
        self._survival = RequestRecovery(self, self.timeouts, self.observer)
        self._found: dict[int, frozenset[str]] = {}
        """By source: whom it named last."""
        self._background: set[asyncio.Task[None]] = set()
        self._info: EngineInfo | None = None
        self._depth: int | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._losses = LossLog()

    async def start(self) -> EngineInfo:
        """Returns when one worker serves. Raises EngineStartError when none does in time."""
        for number, source in enumerate(self.sources):
            await self._read(number, source)
            self._run(self._watch(number, source))
        try:
            async with asyncio.timeout(self.rules.start_s):
                while self._info is None:
                    await self._changed.wait()
        except TimeoutError:
            waited = f"No worker was ready after {self.rules.start_s:g} s."
            raise EngineStartError(f"{waited} {self._why_none()}") from None
        return self._info

    def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        return self._survival.generate(self._bounded(request))

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound the depth of requests from now on; those that run keep theirs."""
        if self._info is None or not self._info.speculation.per_request:
            raise ValueError("these workers do not let requests choose their depth")
        self._depth = min(depth, self._info.speculation.depth)
        return AppliedDepth(self._depth)

    async def wait_failed(self) -> str:
        """Never: workers may come back as long as there is a gateway."""
        return str(await asyncio.get_running_loop().create_future())

    async def health(self) -> Health:
        """From what is known: this answers at once, whatever the workers do.

        Anybody may ask ``/ready``: who the workers are is for operators.
        """
        if any(worker.is_serving for worker in self.workers.values()):
            return Health(live=True)
        return Health(live=False, reason=f"None of {len(self.workers)} workers serves.")

    @property
    def unclaimed(self) -> Totals:
        """Steps whose tokens went to nobody: those of replays, and those the engines count."""
        links = (worker.link for worker in self.workers.values())
        engines = (link.engine for link in links if link is not None)
        counted = (engine.unclaimed for engine in engines if isinstance(engine, SupportsUnclaimed))
        return sum(counted, self._survival.replayed)

    @property
    def losses(self) -> LossLog:
        """When circuits were opened, and why; oldest first."""
        return self._losses

    async def aclose(self) -> None:
        self._closed = True
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.aclose() for worker in self.workers.values()))
        self._tell()

    def status(self) -> list[WorkerStatus]:
        """Every worker as it is now, by name."""
        return [self._status(worker) for _, worker in sorted(self.workers.items())]

    @property
    def accounts(self) -> bool:
        return self._info is None or self._info.reports_decode_steps

    @property
    def is_closed(self) -> bool:
        return self._closed

    def reset_failures(self) -> None:
        """Workers restart themselves: there is nothing to forgive."""

    @asynccontextmanager
    async def submit(self, inflight: InFlightRequest) -> AsyncIterator[WorkerSlot]:
        async with AsyncExitStack() as inside:
            while True:
                worker, assignment = await self._assign(inflight)
                inside.callback(self._left, worker, assignment)
                rank = {"strikes": inflight.strikes, "submissions": inflight.submissions}
                trial = await inside.enter_async_context(worker.isolation.admit(**rank))
                if worker.is_serving and (link := worker.link) is not None:
                    break
                await inside.aclose()  # lost while the request waited for its trial
            inside.enter_context(link.running())
            yield WorkerSlot(self, inflight, worker, link, trial, assignment)

    def others(self, inflight: InFlightRequest) -> list[Worker]:
        """Who serves, and is not to be avoided."""
        return [w for w in self.workers.values() if w.is_serving and w.link not in inflight.avoided]

    async def _assign(self, inflight: InFlightRequest) -> tuple[Worker, Assignment]:
        """Waits for a worker. Raises EngineDead."""
        if self._info is None:
            raise EngineDead("Not started yet.")
        since = now() if inflight.waiting_since is None else inflight.waiting_since
        try:
            async with asyncio.timeout_at(since + self.timeouts.wait_s):
                while not (able := self.others(inflight)):
                    await self._wait(inflight)
        except TimeoutError:
            raise EngineDead(f"No worker came back in time. {self._why_none()}") from None
        assignment = self._balancer.assign(inflight.request, [worker.name for worker in able])
        worker = self.workers[assignment.name]
        worker.counts.why[assignment.why] += 1
        return worker, assignment

    async def _wait(self, inflight: InFlightRequest) -> None:
        """Until something may be different: a worker comes, or those it avoids have had a pause."""
        if self._closed:
            raise EngineDead("The engine was closed.")
        if any(worker.is_serving for worker in self.workers.values()):
            inflight.avoided.clear()
            await asyncio.sleep(self.rules.pause_s)
        else:
            await self._changed.wait()

    def _left(self, worker: Worker, assignment: Assignment) -> None:
        assignment.charge.settle()
        if assignment.charge.num_made:
            self._balancer.expected.learn(assignment.charge.num_made)
        if worker.draining:
            self._part()

    async def _watch(self, number: int, source: WorkerSource) -> None:
        while True:
            await asyncio.sleep(source.interval_s)
            await self._read(number, source)

    async def _read(self, number: int, source: WorkerSource) -> None:
        try:
            found = await source.read()
        except DiscoveryError as error:
            log.error("workers stay as they are: %s", error)
            return
        except Exception:
            log.exception("workers stay as they are: a source cannot be read")
            return
        if found != self._found.get(number):
            self._found[number] = found
            self._update()

    def _update(self) -> None:
        """Bring the workers into line with what the sources say."""
        wanted: frozenset[str] = frozenset().union(*self._found.values())
        for name in sorted(wanted - self.workers.keys()):
            self._join(name)
        for worker in self.workers.values():
            worker.draining = worker.name not in wanted
        self._part()
        self._tell()

    def _join(self, name: str) -> None:
        log.info("worker %s joins", name)
        self.workers[name] = worker = Worker(
            name,
            self.make,
            self.rules,
            self.timeouts.stall_s,
            self._accept,
            self._noted,
            self._given_up,
        )
        self._balancer.join(name)
        worker.begin()

    def _part(self) -> None:
        """From the workers that are no longer wanted and have ended what they ran."""
        for worker in [w for w in self.workers.values() if w.draining and w.idle]:
            log.info("worker %s leaves", worker.name)
            del self.workers[worker.name]
            self._balancer.leave(worker.name)
            self._run(worker.aclose())

    def _accept(self, info: EngineInfo) -> None:
        """Make a new worker one of ours. Raises Misfit."""
        if self._info is not None:
            _check_fit(info, self._info)

    def _bounded(self, request: EngineRequest) -> EngineRequest:
        if self._depth is None:
            return request
        depth = self._depth if request.depth is None else min(request.depth, self._depth)
        return replace(request, depth=depth)

    def _noted(self, worker: Worker) -> None:
        """A worker began to serve, or does not."""
        if worker.is_serving and worker.link is not None:
            self._info = self._info or worker.link.info
            self._balancer.join(worker.name)
        self._part()
        self._tell()

    def _given_up(self, worker: Worker, cause: LossCause) -> None:
        self._losses.add(create_loss(cause, worker.reason, None, None, worker.name))

    def _why_none(self) -> str:
        if not self.workers:
            return "There are no workers."
        reasons = [f"{worker.name}: {worker.reason}" for worker in self.workers.values()]
        more = f" and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
        return f"No worker serves ({'; '.join(reasons[:SHOWN])}{more})."

    def _status(self, worker: Worker) -> WorkerStatus:
        tally = worker.counts
        return WorkerStatus(
            name=worker.name,
            state=worker.state,
            reason=worker.reason,
            running=0 if worker.link is None else worker.link.stall_detector.num_running,
            outstanding=self._balancer.load(worker.name).tokens,
            requests={why.value: tally.why[why] for why in RoutingReason},
            tokens=tally.tokens,
            retried=tally.retried,
            continued=tally.continued,
            openings=worker.breaker.num_opened,
            counted=worker.counted,
        )

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _check_fit(info: EngineInfo, ours: EngineInfo) -> None:
    """Whether a request that began elsewhere can go on there. Raises Misfit."""
    for what in ("model", "vocab_size", "reports_decode_steps", "accounts_at_end"):
        theirs, wanted = getattr(info, what), getattr(ours, what)
        if theirs != wanted:
            raise IncompatibleWorker(f"its {what} is {theirs}, the others' is {wanted}")
    if info.max_model_len < ours.max_model_len:
        raise IncompatibleWorker(
            f"its max_model_len is {info.max_model_len}, less than the others' {ours.max_model_len}"
        )
