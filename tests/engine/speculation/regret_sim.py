"""A simulated engine for the depth planner: known survivals, a known cost table, any seed.

Requests of several kinds decode in a closed loop. Acceptance is drawn from each kind's conditional
acceptance per position. Step times come with noise from a table: ``COST_MS`` was measured (the
40-layer demo on two cores), ``GPUS`` are shaped like GPUs. Lanes are fixed depths, no draft, the
planner, and an oracle with full knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep
from eaglegate.engine.speculation.planner.step_graphs import GraphMode, StepGraphs

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]

DEPTH = 7
MEASURED_BATCHES = np.array([1.0, 16.0])
MEASURED_DEPTHS = np.array([0.0, 1.0, 5.0, 7.0])
COST_MS = np.array([[9.8, 11.4, 13.9, 15.4], [18.4, 21.6, 36.0, 39.5]])
"""Step time by batch size and depth, with all drafts verified."""
DRAFT_SHARE = 0.45
"""Share of a step's extra time that is spent on drafting instead of verifying."""
NO_DRAFT = 0.95
"""Time of a step without a draft over one at depth 0 with a draft loaded."""


@dataclass(frozen=True)
class Kind:
    """Kind of traffic: conditional acceptance per position, and answer length in tokens."""

    name: str
    acceptance: tuple[float, ...]
    tokens: int = 120

    @property
    def acceptance_by_position(self) -> Floats:
        tail = (self.acceptance[-1],) * (DEPTH - len(self.acceptance))
        return np.array(self.acceptance + tail)


FRIENDLY = Kind("friendly", (0.97, 0.96, 0.96, 0.95, 0.95, 0.94, 0.94))
HOSTILE = Kind("hostile", (0.12, 0.08, 0.05))
LONG = Kind("long", (0.9, 0.75, 0.55, 0.4, 0.3), 200)


@dataclass(frozen=True)
class Phase:
    """Phase of ``requests`` in total, ``batch`` at a time; ``kinds`` take turns."""

    name: str
    kinds: tuple[Kind, ...]
    batch: int
    requests: int


PHASES = (
    Phase("friendly", (FRIENDLY,), 4, 60),
    Phase("hostile", (HOSTILE,), 4, 40),
    Phase("long context", (LONG,), 4, 40),
    Phase("burst 1", (FRIENDLY,), 1, 10),
    Phase("burst 16", (FRIENDLY,), 16, 120),
    Phase("burst 1 again", (FRIENDLY,), 1, 10),
    Phase("mixed", (FRIENDLY, HOSTILE), 8, 100),
    Phase("friendly at last", (FRIENDLY,), 4, 60),
)


def step_ms(batch: int, num_verified: float, depth: int) -> float:
    """Interpolate in the table; verified tokens count as their share of a full width."""

    def interpolate(d: float) -> float:
        rows = [np.interp(d, MEASURED_DEPTHS, row) for row in COST_MS]
        return float(np.interp(batch, MEASURED_BATCHES, rows))

    base = interpolate(0)
    width = num_verified / batch
    return (
        base
        + DRAFT_SHARE * (interpolate(depth) - base)
        + (1 - DRAFT_SHARE) * (interpolate(width) - base)
    )


class CpuTable:
    """Measured table. No step depends on the distribution of widths over requests."""

    graphs: StepGraphs | None = None

    def step_ms(self, widths: Sequence[int], depth: int) -> float:
        """Return the milliseconds of a step with these verified widths and draft depth."""
        return step_ms(len(widths), float(sum(widths)), depth)


@dataclass(frozen=True)
class GpuTable:
    """Step times shaped like those of a GPU with vLLM's second model runner.

    A step reads all weights once (``base_ms``), computes the tokens that it is padded to, and
    changes from memory-bound to compute-bound at ``knee`` tokens. Without a FULL graph, kernels of
    every layer are launched one by one. A pass of the draft reads the draft's weights.

    Sources of the numbers: an H100 reads 3.35 TB/s and computes 989 TFLOP/s in bf16 (its data
    sheet), so 300 tokens take as long to compute as weights to read; real kernels reach about 70 %.
    The cost of PIECEWISE graphs is vLLM's own: pull requests 21477 (8B: on par), 16072 (1.5B: 7 %)
    and 25444 (30B with 3B active: 47 %). Sizes and depths are those of
    ``engine/vllm_backend/graphs.py``.
    """

    name: str
    base_ms: float
    token_ms: float
    compute_ms: float
    """Milliseconds of each token beyond the knee."""
    request_ms: float
    """Milliseconds to read the KV cache of a context of 1,000 tokens."""
    piecewise_ms: float
    draft_ms: float
    """Milliseconds of each pass of the draft; the first also fills its KV cache."""
    knee: int = 200
    graphs: StepGraphs = StepGraphs(
        (0, 1, 3, 7), (*range(1, 17), *range(24, 257, 8), *range(272, 513, 16))
    )

    def step_ms(self, widths: Sequence[int], depth: int) -> float:
        return self.run_ms(widths, depth, self.graphs.find_mode(widths))

    def run_ms(self, widths: Sequence[int], depth: int, mode: GraphMode) -> float:
        tokens = self.graphs.pad(len(widths) + sum(widths))
        target = self.base_ms + self.token_ms * tokens + self.request_ms * len(widths)
        target += self.compute_ms * max(0.0, tokens - self.knee)
        target += (0.0, self.piecewise_ms, 3 * self.piecewise_ms)[mode]
        return target + self.draft_ms * depth + (depth > 0) * self.draft_ms


GPUS = (
    GpuTable("dense 8B", 6.9, 0.004, 0.023, 0.05, 0.14, 0.35),
    GpuTable("dense 1.5B", 1.9, 0.001, 0.005, 0.012, 0.16, 0.2),
    GpuTable("30B, 3B active", 7.5, 0.03, 0.01, 0.03, 3.5, 0.4),
)


H100 = GpuTable("H100, 8B", 5.6, 0.006, 0.027, 0.012, 0.3, 0.45)
"""Fitted to steps on an H100: 5.6 ms, 0.45 ms for a pass of the draft, and 16 ms more for 512
tokens than for 64."""


@dataclass
class RunningRequest:
    name: str
    kind: Kind
    remaining: int
    width: int = 0


Chooser = Callable[[Sequence[RunningRequest]], tuple[int, Ints]]


@dataclass
class Lane:
    """One way to choose depths, run over all phases."""

    name: str
    choose: Chooser
    planner: DepthPlanner | None = None
    factor: float = 1.0
    table: CpuTable | GpuTable = field(default_factory=CpuTable)
    depth: int | None = None
    """Fixed depth, if any."""


@dataclass
class PhaseResult:
    phase: str
    seconds: float = 0.0
    tokens: int = 0
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, tokens and depth of every step."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def choose_fixed(depth: int) -> Chooser:
    return lambda requests: (depth, np.full(len(requests), depth))


def oracle(requests: Sequence[RunningRequest]) -> tuple[int, Ints]:
    """Choose by true survivals at every depth; only the step's own horizon is approximate."""
    survival = np.cumprod([r.kind.acceptance_by_position for r in requests], axis=1)
    choice = (
        len(requests) / step_ms(len(requests), 0, 0),
        0,
        np.zeros(len(requests), dtype=np.int64),
    )
    for depth in range(1, DEPTH + 1):
        order = np.sort(survival[:, :depth].ravel())[::-1]
        gains = np.concatenate([[0.0], np.cumsum(order)])
        counts = np.arange(len(gains))
        times = np.array([step_ms(len(requests), float(n), depth) for n in counts])
        rates = (len(requests) + gains) / times
        n = int(rates.argmax())
        if rates[n] > choice[0]:
            threshold = order[n - 1] if n else 2.0
            choice = (float(rates[n]), depth, (survival[:, :depth] >= threshold).sum(axis=1))
    return choice[1], choice[2]


def make_oracle(table: CpuTable | GpuTable) -> Chooser:
    """Return a chooser of the best depth, with all thresholds of true survival and equal widths."""

    def choose_depth(requests: Sequence[RunningRequest]) -> tuple[int, Ints]:
        survival = np.cumprod([r.kind.acceptance_by_position for r in requests], axis=1)
        choice, rate = (0, np.zeros(len(requests), dtype=np.int64)), 0.0
        for depth in range(DEPTH + 1):
            gains = survival[:, :depth]
            for threshold in {0.0, *np.unique(gains.round(3)).tolist()}:
                widths = (gains >= threshold).sum(axis=1)
                gain = len(requests) + float((gains * (gains >= threshold)).sum())
                rate_found = gain / table.step_ms(widths.tolist(), depth)
                if rate_found > rate:
                    rate, choice = rate_found, (depth, widths)
        return choice

    return choose_depth


def choose_planned(planner: DepthPlanner) -> Chooser:
    def choose_depth(requests: Sequence[RunningRequest]) -> tuple[int, Ints]:
        names = [r.name for r in requests]
        plan = planner.plan(names, [min(DEPTH, max(0, r.remaining - 1)) for r in requests])
        return plan.depth, np.array(plan.widths)

    return choose_depth


def run(
    lane: Lane,
    phases: Sequence[Phase],
    seed: int,
    noise: float = 0.05,
    slowness: Callable[[int], float] = lambda _: 1.0,
) -> list[PhaseResult]:
    """Run every phase to its last request. Equal seeds draw equal requests for every lane.

    ``slowness`` is the machine's at a phase's n-th step: observed times are multiplied by it and by
    noise, and counted without either.
    """
    rng = np.random.default_rng(seed)
    results = []
    for number, phase in enumerate(phases):
        result = PhaseResult(phase.name)
        arrivals = _arrivals(phase, number)
        requests = [r for r, _ in zip(arrivals, range(phase.batch), strict=False)]
        _add(lane, requests)
        while requests:
            _step(lane, requests, result, rng, noise, slowness(len(result.steps)))
            for index in [i for i, r in enumerate(requests) if r.remaining <= 0][::-1]:
                request = requests.pop(index)
                if lane.planner is not None:
                    lane.planner.survival.remove(request.name)
                newcomer = next(arrivals, None)
                if newcomer is not None:
                    requests.append(newcomer)
                    _add(lane, [newcomer])
        results.append(result)
    return results


def _arrivals(phase: Phase, number: int) -> Iterator[RunningRequest]:
    for i in range(phase.requests):
        kind = phase.kinds[i % len(phase.kinds)]
        yield RunningRequest(f"{number}-{i}", kind, kind.tokens)


def _add(lane: Lane, requests: Sequence[RunningRequest]) -> None:
    if lane.planner is not None:
        for r in requests:
            lane.planner.survival.add(r.name)


def _step(
    lane: Lane,
    requests: list[RunningRequest],
    result: PhaseResult,
    rng: np.random.Generator,
    noise: float,
    slowness: float,
) -> None:
    """Verify the drafts of the previous step, then draft, in an engine's order."""
    depth, widths = lane.choose(requests)
    verified_widths = np.array([r.width for r in requests])
    draws = rng.random((len(requests), DEPTH))
    acceptance = np.array([r.kind.acceptance_by_position for r in requests])
    hits = np.cumprod(draws < acceptance, axis=1)
    accepted = (hits * (np.arange(1, DEPTH + 1) <= verified_widths[:, None])).sum(axis=1)
    seconds = _take(lane, verified_widths.tolist(), depth) * lane.factor / 1e3
    noise_factor = float(rng.lognormal(0.0, noise)) * (4.0 if rng.random() < 0.005 else 1.0)
    tokens = 0
    for r, num_accepted, width in zip(requests, accepted, widths, strict=True):
        num_made = min(int(num_accepted) + 1, r.remaining)
        tokens += num_made
        r.remaining -= num_made
        r.width = int(width)
    result.seconds += seconds
    result.tokens += tokens
    result.steps.append((seconds, tokens, depth))
    if lane.planner is not None:
        lane.planner.observe(
            [r.name for r in requests], verified_widths.tolist(), accepted.tolist()
        )
        graphs = lane.table.graphs
        mode = graphs.find_mode(verified_widths.tolist()) if graphs else GraphMode.FULL
        lane.planner.observe_step(
            ObservedStep(
                len(requests),
                int(verified_widths.sum()),
                depth,
                seconds * noise_factor * slowness,
                mode=mode,
            )
        )


def _take(lane: Lane, widths: list[int], depth: int) -> float:
    """Return the milliseconds of a step. A fixed depth has graphs of its own."""
    if isinstance(lane.table, GpuTable) and lane.depth is not None:
        graphs = replace(lane.table.graphs, widths=(lane.depth,))
        return lane.table.run_ms(widths, depth, graphs.find_mode(widths))
    return lane.table.step_ms(widths, depth)


def profiled(planner: DepthPlanner, table: CpuTable | GpuTable | None = None) -> DepthPlanner:
    """Teach a planner the steps that an engine times while it warms up."""
    table = table or CpuTable()
    batches = (1, 4, 16) if table.graphs is None else (1, 4, 16, 64, 256)
    shapes = [[depth] * batch for batch in batches for depth in (0, 1, 3, DEPTH)]
    if table.graphs is not None:
        shapes += [[depth, 0] * (batch // 2) for batch in (4, 16) for depth in (1, 4, DEPTH)]
    for widths in shapes:
        mode = table.graphs.find_mode(widths) if table.graphs else GraphMode.FULL
        for _ in range(3):
            seconds = table.step_ms(widths, max(widths)) / 1e3
            planner.cost.observe(
                ObservedStep(len(widths), sum(widths), max(widths), seconds, mode=mode)
            )
    return planner


def lanes(table: CpuTable | GpuTable | None = None) -> list[Lane]:
    """Return the lanes; ``line`` is the planner that does not know about graphs."""
    table = table or CpuTable()
    planner = profiled(DepthPlanner(DEPTH, graphs=table.graphs), table)
    line_planner = profiled(DepthPlanner(DEPTH), table)
    line_lane = Lane("line", choose_planned(line_planner), line_planner, table=table)
    return [
        Lane("none", choose_fixed(0), factor=NO_DRAFT, table=table, depth=0),
        *(Lane(f"K={d}", choose_fixed(d), table=table, depth=d) for d in (0, 1, 3, 5, 7)),
        *([] if table.graphs is None else [line_lane]),
        Lane("auto", choose_planned(planner), planner, table=table),
        Lane("oracle", oracle if table.graphs is None else make_oracle(table), table=table),
    ]
