"""Metrics of the serving side: engines, the depth planner, a fleet's workers, GPUs and this
process."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from eaglegate.engine.fleet.types import WorkerState, WorkerStatus
from eaglegate.engine.machine import GpuReading
from eaglegate.observability.facts import (
    DepthHeld,
    DraftCrashed,
    EngineChecked,
    EngineLost,
    EngineStarted,
    GatewayStarted,
    RequestInterrupted,
)
from eaglegate.observability.labels import OTHER
from eaglegate.observability.metrics.base import MetricGroup, Samples

SLICE = re.compile(r"(.*)/(answer|reasoning)/(\d+k.*)", re.DOTALL)
"""Name of a planner's slice: a workload, which may have slashes, a phase, and what its prompts and
their sampling have in common (``engine/vllm_backend/planning.py``)."""


class EngineState(MetricGroup):
    """State of the engine: up or down, starts, time of the last start, and the running speculation.

    Restarts: ``increase(eaglegate_engine_starts_total[1h]) - 1`` once it has started;
    ``eaglegate_engine_up == 0`` while it cannot make tokens.
    """

    def declare(self) -> None:
        self._up = self.gauge("engine_up", "1 while the engine can make tokens", ("engine",))
        self._starts = self.counter("engine_starts", "Times the engine became ready", ("engine",))
        self._seconds = self.gauge("engine_start_seconds", "Time the last start took", ("engine",))
        self._start = self.gauge(
            "start_seconds", "Time that the gateway's start took, by part", ("part",)
        )
        self._info = self.gauge(
            "engine_info",
            "Always 1; the labels describe the engine",
            ("engine", "model", "method", "depth", "lookup"),
        )
        self._lossy = self.gauge(
            "engine_lossy",
            "1 while a setting of speculation may change text; absent if unknown",
            ("engine",),
        )
        self._losses = self.counter(
            "engine_losses", "Engine losses: died, hung or failed to restart", ("engine", "cause")
        )
        self._interrupted = self.counter(
            "interrupted_requests",
            "Requests that lost their engine, by outcome",
            ("outcome",),
        )
        drafts = ("engine", "method", "depth")
        self._draft_deaths = self.counter(
            "draft_deaths",
            "Engines killed by their drafts: the request succeeded without drafts",
            drafts,
        )
        self._draft_holds = self.gauge(
            "draft_hold", "1 for each depth that is held off because it killed engines", drafts
        )

        self.on(EngineStarted, self._count_start)
        self.on(GatewayStarted, self._set_parts)
        self.on(EngineChecked, lambda fact: self._up(fact.engine).set(fact.live))
        self.on(EngineLost, self._count_loss)
        self.on(DraftCrashed, self._count_crash)
        self.on(DepthHeld, self._set_hold)
        self.on(RequestInterrupted, lambda fact: self._interrupted(fact.outcome).inc())

    def _count_start(self, fact: EngineStarted) -> None:
        engine, info = fact.engine, fact.info
        self._up(engine).set(1)
        self._starts(engine).inc()
        self._seconds(engine).set(fact.seconds)
        self._info.remove(engine=engine)
        speculation = info.speculation
        depth, lookup = str(speculation.depth), str(speculation.lookup)
        self._info(engine, info.model, speculation.method, depth, lookup).set(1)
        if speculation.lossy is not None:
            self._lossy(engine).set(bool(speculation.lossy))

    def _set_parts(self, fact: GatewayStarted) -> None:
        for part, time_s in fact.seconds.items():
            self._start(part).set(time_s)

    def _count_loss(self, fact: EngineLost) -> None:
        self._up(fact.engine).set(0)
        self._losses(fact.engine, fact.cause).inc()

    def _count_crash(self, fact: DraftCrashed) -> None:
        self._draft_deaths(fact.engine, fact.method, str(fact.depth)).inc()

    def _set_hold(self, fact: DepthHeld) -> None:
        labels = {"engine": fact.engine, "method": fact.hold.method, "depth": str(fact.hold.depth)}
        if fact.is_held:
            self._draft_holds(*labels.values()).set(1)
        else:
            self._draft_holds.remove(**labels)


LabelledValues = Mapping[tuple[str, ...], float]
"""Values by the labels that follow the worker's name."""

MOST = 100
"""Number of workers with their own series; all further ones are summed as ``other``."""


class Workers(MetricGroup):
    """State and load of each worker of a fleet; absent if the engine is not a fleet.

    Share of requests that went where their prefix is cached: ``sum(rate(
    eaglegate_worker_requests_total{why=~"session|prefix"}[5m])) /
    sum(rate(eaglegate_worker_requests_total[5m]))``. Acceptance length by worker, from the worker's
    own counters: ``1 + rate(eaglegate_worker_accepted_tokens_total[5m]) /
    rate(eaglegate_worker_verify_steps_total[5m])``. The series of a worker disappear when it
    leaves.
    """

    def declare(self) -> None:
        self._add(
            "worker_findings",
            "1 for each fault that the start-up probe or an audit found in a worker, by part of it",
            ("kind",),
            lambda worker: {(finding.kind.value,): 1.0 for finding in worker.findings},
        )
        self._add(
            "worker_state",
            "1 for the state a worker is in",
            ("state",),
            lambda worker: {(state.value,): float(worker.state is state) for state in WorkerState},
        )
        self._add(
            "worker_requests_running", "Requests in a worker now", (), lambda w: {(): w.running}
        )
        self._add(
            "worker_outstanding_tokens",
            "Tokens a worker still has to process: prompts and expected output",
            (),
            lambda w: {(): w.outstanding},
        )
        self._add(
            "worker_requests_total",
            "Requests routed to a worker, by routing reason",
            ("why",),
            lambda w: {(why,): count for why, count in w.requests.items()},
        )
        self._add("worker_tokens_total", "Tokens a worker generated", (), lambda w: {(): w.tokens})
        self._add(
            "worker_moved_requests_total",
            "Requests moved off a worker: retried before their first token, or continued after it",
            ("how",),
            lambda w: {("retried",): w.retried, ("continued",): w.continued},
        )
        self._add(
            "worker_openings_total",
            "Times a worker's circuit opened",
            (),
            lambda w: {(): w.openings},
        )
        self._declare_speculation()

    def _declare_speculation(self) -> None:
        counters = {
            "verify_steps": ("D, as the worker counts it", "verify_steps"),
            "drafted_tokens": ("P, as the worker counts it", "proposed"),
            "accepted_tokens": ("A, as the worker counts it", "accepted"),
        }
        for name, (help_, part) in counters.items():
            self._add(f"worker_{name}_total", help_, (), _read_counter(part))

    def _add(
        self,
        name: str,
        help_: str,
        labels: tuple[str, ...],
        cells: Callable[[WorkerStatus], LabelledValues],
    ) -> None:
        names = ("worker", *labels)
        self.computed_metric(
            name, help_, names, lambda: _sum_by_worker(self.scope.workers(), cells)
        )


def _read_counter(part: str) -> Callable[[WorkerStatus], LabelledValues]:
    def cells(worker: WorkerStatus) -> LabelledValues:
        return {} if worker.counted is None else {(): getattr(worker.counted, part)}

    return cells


def _sum_by_worker(
    workers: Iterable[WorkerStatus], cells: Callable[[WorkerStatus], LabelledValues]
) -> Samples:
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for index, worker in enumerate(workers):
        name = worker.name if index < MOST else OTHER
        for labels, value in cells(worker).items():
            sums[(name, *labels)] += value
    return sums.items()


class Gpus(MetricGroup):
    """Memory, load and power by GPU, read on every scrape; absent without GPUs.

    Share of memory in use: ``eaglegate_gpu_memory_used_bytes
    / eaglegate_gpu_memory_total_bytes``
    """

    def declare(self) -> None:
        self._gauge("gpu_memory_used_bytes", "Memory in use", lambda r: r.memory_used_bytes)
        self._gauge("gpu_memory_total_bytes", "Memory in total", lambda r: r.memory_total_bytes)
        self._gauge(
            "gpu_utilization_ratio", "Share of time in which a kernel ran", lambda r: r.utilization
        )
        self._gauge("gpu_power_watts", "Power drawn", lambda r: r.power_watts)

    def _gauge(self, name: str, help_: str, pick: Callable[[GpuReading], float | None]) -> None:
        def read() -> dict[str, float]:
            values = {str(gpu.index): pick(gpu.read()) for gpu in self.scope.gpus}
            return {gpu: value for gpu, value in values.items() if value is not None}

        self.labelled_metric(name, help_, "gpu", read)


HELP = {
    "connections": "Client connections",
    "connection_limit": "Limit of client connections",
    "memory_bytes": "Memory in use at the tightest limit: control group or process tree",
    "memory_limit_bytes": "The tightest memory limit",
    "memory_shedding": "1 while new requests are refused because memory is low",
}


class Process(MetricGroup):
    """Connections and memory, and their limits.

    Share of memory in use: ``eaglegate_memory_bytes / eaglegate_memory_limit_bytes``. Refused
    connections: ``rate(eaglegate_requests_refused_total{code="too_many_connections"}[5m])``.
    Requests refused because memory is low have the code ``memory_pressure``.
    """

    def _find(self, name: str) -> float | None:
        return self.scope.process().get(name)

    def declare(self) -> None:
        for name, help_ in HELP.items():
            self.number_metric(name, help_, partial(self._find, name))
        self.labelled_metric(
            "fact_failures_total",
            "Facts that a part of the gateway failed to receive; requests go on",
            "subscriber",
            lambda: self.scope.facts.failures,
        )


class PlannedDepths(MetricGroup):
    """Depths that the planner chooses, with the reasons; absent if the depth is fixed.

    Share of steps at each depth: ``sum by (depth) (rate(eaglegate_planner_steps_total[5m])) /
    ignoring(depth) group_left sum(rate(eaglegate_planner_steps_total[5m]))``. A step drafts once
    for the whole batch; ``eaglegate_planner_requests_total`` counts the draft tokens that each
    request verifies. Warm-up counts as its own workload.
    """

    def declare(self) -> None:
        self.labelled_metric(
            "planner_steps_total",
            "Planned steps, by drafting depth",
            "depth",
            lambda: by_depth(self.scope.planner().get("steps_by_depth", ())),
        )
        self.labelled_metric(
            "planner_decisions_total",
            "Planned steps, by reason",
            "reason",
            lambda: self.scope.planner().get("steps_by_reason", {}),
        )
        self.computed_metric(
            "planner_requests_total",
            "Requests in planned steps, by slice and draft tokens to verify",
            ("workload", "phase", "context", "depth"),
            self._requests,
        )
        self.number_metric(
            "planner_frozen", "1 while an operator holds the depth", self._read_frozen
        )

    def _requests(self) -> Samples:
        counts: Counter[tuple[str, ...]] = Counter()
        for row in self.scope.planner().get("traffic", ()):
            names = SLICE.fullmatch(row["traffic"])
            if names is None:
                continue
            workload, phase, context = names.groups()
            for depth, requests in enumerate(row["requests_by_depth"]):
                counts[workload, phase, context, str(depth)] += requests
        yield from counts.items()

    def _read_frozen(self) -> bool | None:
        planner = self.scope.planner()
        return planner["frozen"] is not None if "frozen" in planner else None


class PlannerCalibration(MetricGroup):
    """The planner's expectations and the outcomes; absent if the depth is fixed.

    Calibration, 1 at best: ``rate(eaglegate_planner_expected_tokens_total[15m]) /
    rate(eaglegate_planner_committed_tokens_total[15m])``, and likewise for the seconds. Estimated
    regret against the best fixed depth, below 0 if planning is faster:
    ``rate(eaglegate_planner_planned_seconds_total[1h]) /
    min(rate(eaglegate_planner_fixed_seconds_total[1h])) - 1``. Share of the time that planning
    takes: ``rate(eaglegate_planner_planning_seconds_total[5m]) /
    rate(eaglegate_planner_step_seconds_total[5m])``.
    """

    SUMS = (
        ("expected_tokens", "expected_tokens", "Committed tokens that were expected"),
        ("committed_tokens", "committed_tokens", "Tokens that the same requests committed"),
        ("expected_seconds", "expected_s", "Expected time of steps without prompts"),
        ("step_seconds", "taken_s", "Time that the same steps took"),
        ("planned_seconds", "planned_s", "Expected time of all steps as planned"),
        ("planning_seconds", "planning_s", "Time spent planning"),
    )

    def declare(self) -> None:
        for name, field, meaning in self.SUMS:
            self.planner_metric(f"planner_{name}_total", meaning, field)
        self.labelled_metric(
            "planner_fixed_seconds_total",
            "Expected time of the planned tokens at each fixed depth",
            "depth",
            lambda: by_depth(self.scope.planner().get("fixed_s", ())),
        )


def by_depth(values: Iterable[float]) -> dict[str, float]:
    return {str(depth): value for depth, value in enumerate(values)}


def summarize_planner(planner: Mapping[str, Any]) -> dict[str, Any] | None:
    """Summarize the planner for the page; None without a planner."""
    if "steps_by_depth" not in planner:
        return None
    steps = sum(planner["steps_by_depth"])
    best_s = min(planner["fixed_s"])
    return dict(planner) | {
        "share_by_depth": [_divide(count, steps) for count in planner["steps_by_depth"]],
        "token_calibration": _divide(planner["expected_tokens"], planner["committed_tokens"]),
        "time_calibration": _divide(planner["expected_s"], planner["taken_s"]),
        "gain": _divide(planner["fixed_s"][0], planner["planned_s"]),
        "regret": _divide(planner["planned_s"] - best_s, best_s),
        "planning_ms": _divide(1e3 * planner["planning_s"], steps),
        "planning_share": _divide(planner["planning_s"], planner["taken_s"]),
    }


def _divide(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


GROUPS: tuple[type[MetricGroup], ...] = (
    PlannedDepths,
    PlannerCalibration,
    EngineState,
    Gpus,
    Workers,
    Process,
)
