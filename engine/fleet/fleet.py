"""Fleet: many workers as one engine.

Sources list the workers (``discovery.py``), each ``Worker`` maintains itself (``worker.py``), and
the load balancer picks a worker for each request (``routing.py``). When a worker is lost, its
in-flight requests continue on another one, by the same rules as after a restart of the local engine
(``engine/supervision/recovery.py``). A fleet restarts nothing: it opens the worker's circuit and
probes it until it answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.base import CountsImages, Engine
from eaglegate.engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    EngineStartError,
    EngineUnreachable,
    RequestRejected,
    WorkerMisconfigured,
)
from eaglegate.engine.fleet.discovery import DiscoveryError, WorkerSource
from eaglegate.engine.fleet.routing import Assignment, LoadBalancer, WorkerReservations
from eaglegate.engine.fleet.types import (
    FleetSettings,
    RoutingReason,
    WorkerState,
    WorkerStatus,
    describe_versions,
)
from eaglegate.engine.fleet.worker import IncompatibleWorker, InspectWorker, Worker
from eaglegate.engine.supervision.policy import (
    AppliedDepth,
    LossCause,
    RecoveryObserver,
    SupervisionTimeouts,
    create_loss,
    now,
)
from eaglegate.engine.supervision.pool import EnginePool, EngineSession, SessionSubmission
from eaglegate.engine.supervision.recovery import FailureKind, InFlightRequest, RecoverableError
from eaglegate.engine.types import EngineInfo, EngineRequest, Health, Step
from eaglegate.text.media.image import Image

log = logging.getLogger(__name__)

MOST_MAKERS = 4096
"""Most requests whose workers are remembered."""
MOST_REASONS = 3
"""Number of workers whose reasons are listed when no worker serves."""


@dataclass(eq=False)
class WorkerSlot(SessionSubmission):
    """One submission of a request to one worker."""

    fleet: Fleet
    worker: Worker
    assignment: Assignment

    def record_start(self) -> None:
        self.worker.breaker.record_success()
        self.inflight.disprove_refusals()
        super().record_start()

    def record_delivery(self) -> None:
        super().record_delivery()
        self.fleet.record_maker(self.inflight.request.id, self.worker.name)

    def record_step(self, step: Step) -> None:
        super().record_step(step)
        self.assignment.charge.record_tokens(len(step.token_ids))
        self.worker.counts.tokens += len(step.token_ids)

    async def classify(self, error: RecoverableError) -> FailureKind:
        self.inflight.avoided.add(self.session)
        kind = await self._classify(error)
        if self.inflight.has_output:
            self.worker.counts.continued += 1
        else:
            self.worker.counts.retried += 1
        return kind

    async def _classify(self, error: RecoverableError) -> FailureKind:
        if isinstance(error, EngineOverloaded):
            if not self.inflight.has_output and not self._has_alternative:
                raise error
            return FailureKind.NOT_RUN
        if isinstance(error, RequestRejected):
            return self._doubt_refusal(error)
        if isinstance(error, EngineFailed) and not isinstance(error, WorkerMisconfigured):
            return await self._doubt_failure(error)
        self.worker.record_failure(str(error))
        if isinstance(error, EngineUnreachable):
            return FailureKind.NOT_RUN
        if not (await self.worker.check_health()).live:
            return self.session.failure
        if isinstance(error, EngineFailed):
            self._try_elsewhere(error)
        return FailureKind.REQUEST_LOST

    async def _doubt_failure(self, error: EngineFailed) -> FailureKind:
        """Submit the request to another worker if this one is healthy. It is this one's fault only
        if the other one runs the request: a client's grammar can fail on every worker."""
        record_failure = partial(self.worker.record_failure, str(error))
        if not (await self.worker.check_health()).live:
            record_failure()
            return self.session.failure
        self._try_elsewhere(error)
        self.inflight.refusals.append(record_failure)
        return FailureKind.REQUEST_LOST

    @property
    def _has_alternative(self) -> bool:
        return bool(self.fleet.find_alternatives(self.inflight))

    def _doubt_refusal(self, error: RequestRejected) -> FailureKind:
        """Submit the request to another worker. If that one runs it, the refusal was the first
        one's fault."""
        if self.inflight.has_output or self.inflight.refusals or not self._has_alternative:
            raise error
        reason = f"it refused a request that another worker ran: {error}"
        self.inflight.refusals.append(partial(self.worker.record_failure, reason))
        return FailureKind.NOT_RUN

    def _try_elsewhere(self, error: EngineFailed) -> None:
        """Try another worker after a healthy one failed on the request, up to the limit on
        retries."""
        self.inflight.failures += 1
        if self.inflight.failures > self.fleet.settings.retries or not self._has_alternative:
            raise error


@dataclass(eq=False)
class Fleet(EnginePool, CountsImages):
    """See ``EnginePool``; ``make`` creates an engine for an address."""

    make: Callable[[str], Engine]
    sources: Sequence[WorkerSource]
    timeouts: SupervisionTimeouts = field(default_factory=SupervisionTimeouts)
    settings: FleetSettings = field(default_factory=FleetSettings)
    observer: RecoveryObserver = field(default_factory=RecoveryObserver)
    inspect: InspectWorker | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.workers: dict[str, Worker] = {}
        self.reservations = WorkerReservations()
        self._balancer = LoadBalancer(self.settings.balance)
        self._makers: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        """Workers that delivered tokens, by the ids of the newest requests."""
        self._discovered: dict[int, frozenset[str]] = {}
        """Addresses that each source returned last."""
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self._versions: str | None = None

    async def start(self) -> EngineInfo:
        """Return when one worker serves. Raises EngineStartError if none does in time."""
        for number, source in enumerate(self.sources):
            await self._read(number, source)
            self._run(self._watch(number, source))
        try:
            async with asyncio.timeout(self.settings.start_s):
                while self._info is None:
                    await self._changed.wait()
        except TimeoutError:
            timeout_reason = f"No worker was ready after {self.settings.start_s:g} s."
            raise EngineStartError(f"{timeout_reason} {self._explain_no_worker()}") from None
        return self._info

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound the depth of requests from now on; in-flight requests keep theirs."""
        if self._info is None or not self._info.speculation.per_request:
            raise ValueError("these workers do not let requests choose their depth")
        self._depth = min(depth, self._info.speculation.depth)
        return AppliedDepth(self._depth)

    async def wait_failed(self) -> str:
        """Never return: workers may come back as long as the gateway runs."""
        return str(await asyncio.get_running_loop().create_future())

    async def health(self) -> Health:
        """Answer at once from known state, whatever the workers do.

        The reason does not name the workers, because ``/ready`` is public.
        """
        if any(worker.is_serving for worker in self.workers.values()):
            return Health(live=True)
        return Health(live=False, reason=f"None of {len(self.workers)} workers serves.")

    async def aclose(self) -> None:
        self._closed = True
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.aclose() for worker in self.workers.values()))
        self._notify()

    async def count_image(self, image: Image) -> int:
        """See ``eaglegate.engine.base.CountsImages``. Any worker knows, because they serve the same
        model."""
        for worker in self.workers.values():
            session = worker.session if worker.is_serving else None
            engine = None if session is None else session.engine.capability(CountsImages)
            if engine is not None:
                return await engine.count_image(image)
        raise EngineDead("No worker that reads images is serving.")

    def list_status(self) -> list[WorkerStatus]:
        """Return the current status of every worker, sorted by name."""
        return [self._describe(worker) for _, worker in sorted(self.workers.items())]

    def record_maker(self, request: str, worker: str) -> None:
        """Record that a worker delivers tokens of a request."""
        self._makers[request] = (*self._makers.pop(request, ()), worker)
        while len(self._makers) > MOST_MAKERS:
            self._makers.popitem(last=False)

    def find_makers(self, request: str) -> tuple[str, ...]:
        """Return the workers that delivered tokens of a recent request, in order."""
        return self._makers.get(request, ())

    def hold(self, name: str) -> bool:
        """Send new requests to the other workers. Return False if no other one would be left."""
        held_names = self.reservations.held_names
        serving_names = {worker.name for worker in self.workers.values() if worker.is_serving}
        if not serving_names - held_names - {name}:
            return False
        held_names.add(name)
        return True

    @property
    def is_closed(self) -> bool:
        return self._closed

    @asynccontextmanager
    async def submit(self, inflight: InFlightRequest) -> AsyncIterator[WorkerSlot]:
        async with AsyncExitStack() as stack:
            while True:
                worker, assignment = await self._assign(inflight)
                stack.callback(self._release, worker, assignment)
                rank = {"strikes": inflight.strikes, "submissions": inflight.submissions}
                pending_start = await stack.enter_async_context(worker.isolation.admit(**rank))
                if worker.is_serving and (session := worker.session) is not None:
                    break
                await stack.aclose()  # lost while the request waited for isolation
            stack.enter_context(session)
            yield WorkerSlot(session, inflight, pending_start, self, worker, assignment)

    def find_alternatives(self, inflight: InFlightRequest) -> list[Worker]:
        """Return the serving workers that the request need not avoid."""
        workers = (worker for worker in self.workers.values() if worker.is_serving)
        return [worker for worker in workers if worker.session not in inflight.avoided]

    def _sessions(self) -> list[EngineSession]:
        sessions = (worker.session for worker in self.workers.values())
        return [session for session in sessions if session is not None]

    async def _assign(self, inflight: InFlightRequest) -> tuple[Worker, Assignment]:
        """Wait for a worker and assign the request to it. Raises EngineDead."""
        if self._info is None:
            raise EngineDead("Not started yet.")
        start_time = now() if inflight.waiting_since is None else inflight.waiting_since
        try:
            async with asyncio.timeout_at(start_time + self.timeouts.wait_s):
                while not (alternatives := self.find_alternatives(inflight)):
                    await self._wait(inflight)
        except TimeoutError:
            reason = self._explain_no_worker()
            raise EngineDead(f"No worker came back in time. {reason}") from None
        request, names = inflight.request, [worker.name for worker in alternatives]
        among = self.reservations.select(names, request.arm)
        assignment = self._balancer.assign(request, among)
        worker = self.workers[assignment.name]
        worker.counts.reasons[assignment.reason] += 1
        return worker, assignment

    async def _wait(self, inflight: InFlightRequest) -> None:
        """Wait until a worker serves; if all that serve are avoided, pause and then allow them
        again."""
        if self._closed:
            raise EngineDead("The engine was closed.")
        if any(worker.is_serving for worker in self.workers.values()):
            inflight.avoided.clear()
            await asyncio.sleep(self.settings.pause_s)
        else:
            await self._changed.wait()

    def _release(self, worker: Worker, assignment: Assignment) -> None:
        assignment.charge.settle()
        if assignment.charge.num_made:
            self._balancer.expected.learn(assignment.charge.num_made)
        if worker.draining:
            self._remove_drained()

    async def _watch(self, number: int, source: WorkerSource) -> None:
        while True:
            await asyncio.sleep(source.interval_s)
            await self._read(number, source)

    async def _read(self, number: int, source: WorkerSource) -> None:
        try:
            names = await source.read()
        except DiscoveryError as error:
            log.error("discovery failed, workers unchanged: %s", error)
            return
        except Exception:
            log.exception("discovery failed, workers unchanged")
            return
        if names != self._discovered.get(number):
            self._discovered[number] = names
            self._update_workers()

    def _update_workers(self) -> None:
        """Add and drain workers to match what the sources returned."""
        names: frozenset[str] = frozenset().union(*self._discovered.values())
        for name in sorted(names - self.workers.keys()):
            self._add_worker(name)
        for worker in self.workers.values():
            worker.draining = worker.name not in names
        self._remove_drained()
        self._notify()

    def _add_worker(self, name: str) -> None:
        log.info("worker %s added", name)
        self.workers[name] = worker = Worker(
            name,
            self.make,
            self.settings,
            self.timeouts.stall_s,
            self._check_fit,
            self._handle_change,
            self._record_loss,
            self.inspect,
        )
        self._balancer.add_worker(name)
        worker.start()

    def _remove_drained(self) -> None:
        """Remove workers that are no longer wanted and have no in-flight requests."""
        for worker in [w for w in self.workers.values() if w.draining and w.is_idle]:
            log.info("worker %s removed", worker.name)
            del self.workers[worker.name]
            self.reservations.held_names.discard(worker.name)
            self._balancer.remove_worker(worker.name)
            self._run(worker.aclose())

    def _check_fit(self, info: EngineInfo) -> None:
        """Check that a new worker fits the others. Raises IncompatibleWorker."""
        if self._info is not None:
            check_compatible(info, self._info)

    def _bound_depth(self, request: EngineRequest) -> EngineRequest:
        if (bound := self._bound) is None:
            return request
        depth = bound if request.depth is None else min(request.depth, bound)
        return replace(request, depth=depth)

    def _handle_change(self, worker: Worker) -> None:
        """Update the fleet after a worker began or ceased to serve."""
        if worker.is_serving and worker.session is not None:
            self._info = self._info or worker.session.info
            self._balancer.add_worker(worker.name)
            self._report_versions()
        self._remove_drained()
        self._notify()

    def _report_versions(self) -> None:
        """Log the versions of the serving workers if they differ, and again if they change."""
        versions = describe_versions({name: w.version for name, w in self.workers.items()})
        if versions != self._versions and versions is not None:
            log.warning("%s", versions)
        self._versions = versions

    def _record_loss(self, worker: Worker, cause: LossCause) -> None:
        self.losses.append(create_loss(cause, worker.reason, None, None, worker.name))

    def _explain_no_worker(self) -> str:
        if not self.workers:
            return "There are no workers."
        reasons = [f"{worker.name}: {worker.reason}" for worker in self.workers.values()]
        suffix = f" and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        return f"No worker serves ({'; '.join(reasons[:MOST_REASONS])}{suffix})."

    def _describe(self, worker: Worker) -> WorkerStatus:
        counts, state = worker.counts, worker.state
        if state is WorkerState.SERVING and worker.name in self.reservations.held_names:
            state = WorkerState.HELD
        return WorkerStatus(
            name=worker.name,
            state=state,
            reason=worker.reason,
            running=0 if worker.session is None else worker.session.stall_detector.num_running,
            outstanding=self._balancer.load(worker.name).tokens,
            requests={reason.value: counts.reasons[reason] for reason in RoutingReason},
            tokens=counts.tokens,
            retried=counts.retried,
            continued=counts.continued,
            openings=worker.breaker.num_opened,
            counted=worker.counted,
            findings=(*worker.findings, *worker.alarms.values()),
            version=worker.version,
        )

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def check_compatible(info: EngineInfo, fleet_info: EngineInfo) -> None:
    """Check that a request that began on another worker can continue on this one.

    Raises IncompatibleWorker.
    """
    for name in ("model", "vocab_size", "reports_decode_steps", "accounts_at_end", "image_input"):
        worker_value, fleet_value = getattr(info, name), getattr(fleet_info, name)
        if worker_value != fleet_value:
            raise IncompatibleWorker(f"its {name} is {worker_value}, the others' is {fleet_value}")
    if info.max_model_len < fleet_info.max_model_len:
        raise IncompatibleWorker(
            f"its max_model_len is {info.max_model_len}, less than the others' "
            f"{fleet_info.max_model_len}"
        )
