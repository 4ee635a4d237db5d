"""A simulated engine that serves prompts and answers, for the planner and for fixed depths.

Prompts are read in chunks, contexts grow, requests arrive in loops, laps or at random. Step times
come with noise from a table: ``COST_MS`` was measured (the 40-layer demo on two cores), ``GPUS``
are shaped like GPUs. Engines serve equal requests for equal seeds: whether a draft of a request's
n-th token is accepted depends on a number drawn for that token, and on the draft's position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.planner import DepthPlan, DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep
from eaglegate.engine.speculation.planner.step_graphs import GraphMode, StepGraphs
from eaglegate.engine.types import DepthReason

Ints = NDArray[np.integer[Any]]
DEPTH = 7
MEASURED_BATCHES = np.array([1.0, 16.0])
MEASURED_DEPTHS = np.array([0.0, 1.0, 5.0, 7.0])
COST_MS = np.array([[9.8, 11.4, 13.9, 15.4], [18.4, 21.6, 36.0, 39.5]])
"""Step time by batch size and depth, with all drafts verified."""
DRAFT_SHARE = 0.45
"""Share of a step's extra time that is spent on drafting instead of verifying."""


@dataclass(frozen=True)
class Kind:
    """Kind of traffic: conditional acceptance per position, and answer length in tokens."""

    name: str
    acceptance: tuple[float, ...]
    tokens: int = 120


FRIENDLY = Kind("friendly", (0.97, 0.96, 0.96, 0.95, 0.95, 0.94, 0.94))
HOSTILE = Kind("hostile", (0.12, 0.08, 0.05))


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


Table = CpuTable | GpuTable


def profiled(planner: DepthPlanner, table: Table | None = None) -> DepthPlanner:
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


H100_CONTEXTS = replace(H100, request_ms=0.045)
"""With the time to read a context: at 30,000 tokens a step of one stream took 1.35 ms longer than
at 200 (docs/gpu-results.md, long prompts, no draft)."""
LOADED_SHARE = 0.01
"""What a loaded draft costs a step at depth 0: -0.3 to 1.7 % on vLLM's first model runner, 1.1 % on
the second one (docs/performance.md, a draft at depth 0; no GPU has timed it since then). An engine
without a draft is faster than depth 0 by as much."""
STEP_TOKENS = 8192
"""Tokens of a step. Prompts get what decoding requests leave."""
DRAFT_LAYERS = 1 / 32
"""The draft's layers over the target's, and so its time to read a context."""


@dataclass(frozen=True)
class Traffic:
    """``requests`` requests, at most ``batch`` at a time; ``kinds`` take turns."""

    kinds: tuple[Kind, ...]
    batch: int
    requests: int
    prompt: int = 20
    """Prompt tokens that are not in the prefix cache."""
    context: int = 700
    arrivals: str | float = "loop"
    """``loop``: a request follows each one that ends; ``laps``: a batch follows a batch; or the
    requests per second, at random."""


@dataclass
class Result:
    seconds: float = 0.0
    stream_s: float = 0.0
    tokens: int = 0
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, tokens and depth of every step."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def find_worst_window(self, best: Result, steps: int = 200) -> float:
        """Return the lowest rate of ``steps`` steps in a row, over that at which ``best`` made the
        same tokens; infinite if there are fewer steps."""
        if len(self.steps) < steps:
            return np.inf
        ends, best_ends = (
            np.cumsum([(0.0, 0.0), *((s, t) for s, t, _ in one.steps)], axis=0)
            for one in (self, best)
        )
        best_times = np.interp(ends[:, 1], best_ends[:, 1], best_ends[:, 0])
        spent = best_times[steps:] - best_times[:-steps]
        return float((spent / (ends[steps:, 0] - ends[:-steps, 0])).min())

    @property
    def user_rate(self) -> float:
        """Tokens per second of a stream, for random arrivals."""
        return self.tokens / self.stream_s


def take_ms(
    table: Table, widths: Ints, depth: int, prompt: int = 0, context: float = 0.0
) -> tuple[float, GraphMode]:
    """Return the milliseconds of a step and its graph mode. ``context`` counts the tokens that all
    requests have read."""
    batch, verified = len(widths), int(widths.sum())
    loaded = 1.0 if depth or verified else 1 + LOADED_SHARE
    if isinstance(table, CpuTable):
        target = step_ms(max(batch, 1), verified, depth)
        return loaded * target + 0.3 * prompt, GraphMode.FULL
    graphs, context_ms = table.graphs, table.request_ms * context / 1000
    mode = graphs.find_mode(widths.tolist())
    tokens = graphs.pad(batch + verified + prompt)
    if prompt:
        mode = GraphMode.NONE if tokens > graphs.sizes[-1] else GraphMode.PIECEWISE
    target = table.base_ms + table.token_ms * tokens + context_ms
    target += table.compute_ms * max(0.0, tokens - table.knee)
    target += (0.0, table.piecewise_ms, 3 * table.piecewise_ms)[mode]
    passes = depth + (depth > 0)
    return loaded * target + passes * (table.draft_ms + DRAFT_LAYERS * context_ms), mode


class Engine:
    """An engine with a planner or a fixed depth, which has graphs of its own."""

    def __init__(
        self,
        table: Table,
        max_depth: int,
        planner: DepthPlanner | None = None,
        depth: int = 0,
        noise: float = 0.05,
    ) -> None:
        if planner is None and isinstance(table, GpuTable):
            table = replace(table, graphs=replace(table.graphs, widths=(depth,)))
        self.table, self.max_depth, self.planner, self.depth = table, max_depth, planner, depth
        self._noise, self._names = noise, 0

    def run(self, traffic: Traffic, seed: int) -> Result:
        """Serve all requests."""
        t, k, result = traffic, self.max_depth, Result()
        draw, noise = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
        kinds = [t.kinds[i % len(t.kinds)] for i in range(t.requests)]
        curves = np.array([(kd.acceptance + (kd.acceptance[-1],) * k)[:k] for kd in kinds])
        lengths = np.array([kd.tokens for kd in kinds])
        if t.arrivals != "laps":
            lengths = (lengths * draw.uniform(0.6, 1.4, t.requests)).astype(int)
        luck = draw.random((t.requests, lengths.max() + k + 1), dtype=np.float32)
        gaps = draw.exponential(1 / t.arrivals, t.requests) if isinstance(t.arrivals, float) else 0
        times = np.cumsum(gaps * np.ones(t.requests))
        made, width = np.zeros((2, t.requests), dtype=np.int64)
        prompt, context = np.full(t.requests, t.prompt), np.full(t.requests, t.context)
        positions, running, following = np.arange(k), np.zeros(0, dtype=np.int64), 0
        first = self._names
        self._names += t.requests
        while len(running) or following < t.requests:
            if not len(running):
                result.seconds = max(result.seconds, times[following])
            room = t.batch - len(running) if t.arrivals != "laps" or not len(running) else 0
            due = int(np.searchsorted(times, result.seconds, side="right"))
            arrivals = np.arange(following, min(due, following + room))
            following += len(arrivals)
            self._begin(first + arrivals)
            running = np.concatenate([running, arrivals])
            decoding = running[prompt[running] == 0]
            verified = width[decoding]
            # Prompts are read in the order of their arrival, up to the tokens of a step.
            queue = np.concatenate([[0], np.cumsum(prompt[running])])
            read = np.minimum(queue, STEP_TOKENS - len(decoding) - int(verified.sum()))
            prompt[running] -= np.diff(read)
            ready = running[prompt[running] == 0]
            depth, widths = self._choose(first + ready, np.minimum(lengths - made - 1, k)[ready])
            chunk, read_tokens = int(read[-1]), float(context[decoding].sum())
            ms, mode = take_ms(self.table, verified, depth, chunk, read_tokens)
            hits = luck[decoding[:, None], made[decoding][:, None] + positions] < curves[decoding]
            hits &= positions < verified[:, None]
            accepted = np.cumprod(hits, axis=1).sum(axis=1)
            tokens = np.zeros(t.requests, dtype=np.int64)
            tokens[ready] = 1
            tokens[decoding] += accepted
            np.minimum(tokens, lengths - made, out=tokens)
            made, context, width[ready] = made + tokens, context + tokens, widths
            result.seconds += ms / 1e3
            result.stream_s += ms / 1e3 * len(running)
            result.tokens += int(tokens.sum())
            result.steps.append((ms / 1e3, int(tokens.sum()), depth))
            ended = running[made[running] >= lengths[running]]
            if self.planner and len(decoding):
                names = [str(first + row) for row in decoding]
                self.planner.observe(names, verified.tolist(), accepted.tolist())
                factor = noise.lognormal(0, self._noise)
                factor *= 4 if noise.random() < self._noise / 10 else 1
                content = len(names), int(verified.sum()), depth, ms / 1e3 * factor, chunk, mode
                self.planner.observe_step(ObservedStep(*content))
            self._end(first + ended)
            running = running[made[running] < lengths[running]]
        return result

    def _begin(self, names: Ints) -> None:
        for name in names if self.planner else ():
            self.planner.begin(str(name), "chat/answer/1k", "team")

    def _end(self, names: Ints) -> None:
        for name in names if self.planner else ():
            self.planner.end(str(name))

    def _choose(self, names: Ints, bounds: Ints) -> tuple[int, Ints]:
        if not self.planner or not len(names):
            return self.depth, np.full(len(names), self.depth)
        plan = self.planner.plan([*map(str, names.tolist())], np.maximum(bounds, 0).tolist())
        return plan.depth, np.array(plan.widths)


def make_planned(table: Table, max_depth: int, noise: float = 0.05) -> Engine:
    """Return an engine whose planner has seen the steps of the warm-up (``list_batches``)."""
    planner = DepthPlanner(max_depth, graphs=table.graphs)
    middles = sorted({1, (max_depth + 1) // 2} - {max_depth})
    shapes = [[d] * b for b in (1, 4, 16) for d in (0, max_depth, *middles)]
    shapes += [[d, 0] * (b // 2) for b in (4, 16) for d in sorted({*middles, max_depth})]
    if table.graphs is not None:
        shapes += [[d] * b for b in (64, 256) for d in sorted({0, *middles, max_depth})]
    for widths in map(np.array, shapes):
        for verified in (0 * widths, widths, widths):
            ms, mode = take_ms(table, verified, depth := int(widths.max()), 0, 30.0 * len(widths))
            step = ObservedStep(len(widths), int(verified.sum()), depth, ms / 1e3, mode=mode)
            planner.cost.observe(step)
    return Engine(table, max_depth, planner, noise=noise)


class Oracle(DepthPlanner):
    """A planner that knows all acceptance and times, and tries nothing. It knows the kind of a
    request from the start, or, if ``late``, from its first verified drafts on, as any planner at
    best. For the first traffic of an engine."""

    def __init__(self, table: Table, depth: int, traffic: Traffic, late: bool = False) -> None:
        super().__init__(depth)
        self._table, self._context, self._late = table, traffic.context, late
        curves = [
            (*kind.acceptance, *kind.acceptance[-1:] * depth)[:depth] for kind in traffic.kinds
        ]
        known = np.cumprod(curves, axis=1)
        self._curves = np.vstack([known, known.mean(axis=0)])  # (kinds + 1, K), the last: unknown
        self._plans = Counter[str]()
        self._find_best = cache(self._search)

    def plan(
        self, requests: Sequence[str], bounds: list[int], floors: list[int] | None = None
    ) -> DepthPlan:
        last = len(self._curves) - 1
        # A second plan is made before the drafts of the first one are verified.
        kinds = [
            last if self._late and self._plans[name] < 2 else int(name) % last for name in requests
        ]
        self._plans.update(requests)
        counts = np.bincount(kinds, minlength=last + 1)
        depth, widths = self._find_best(tuple(counts.tolist()))
        chosen = np.minimum(np.array(widths)[kinds], bounds).tolist()
        return DepthPlan(depth, chosen, DepthReason.COST, 0.0, 0.0)

    def _search(self, counts: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the best depth, and the widths of each kind, for a batch of them."""
        plans, context = [], float(self._context * sum(counts))
        for depth in range(self.depth + 1):
            for widths in np.ndindex(*(depth * (count > 0) + 1 for count in counts)):
                if max(widths) == depth:
                    rows = zip(self._curves, widths, strict=True)
                    accepted = np.dot(counts, [curve[:width].sum() for curve, width in rows])
                    ms, _ = take_ms(self._table, np.repeat(widths, counts), depth, 0, context)
                    plans.append(((sum(counts) + accepted) / ms, depth, widths))
        return max(plans)[1:]

    def observe(self, *_: object, **__: object) -> None:
        """Learn nothing."""

    begin = end = observe_step = observe
