"""A simulated engine for the depth planner: known survivals, a measured cost table, any seed.

Requests of several kinds decode in a closed loop. Acceptance is drawn from each kind's conditional
acceptance per position; step times come from the table in ``COST_MS`` (the 40-layer demo on two
cores) with noise. Lanes are fixed depths, no draft, the planner, and an oracle that knows all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.speculation.planner import DepthPlanner

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]

DEPTH = 7
MEASURED_BATCHES = np.array([1.0, 16.0])
MEASURED_DEPTHS = np.array([0.0, 1.0, 5.0, 7.0])
COST_MS = np.array([[9.8, 11.4, 13.9, 15.4], [18.4, 21.6, 36.0, 39.5]])
"""Step time by batch size and depth, all drafts verified."""
DRAFT_SHARE = 0.45
"""Share of a step's extra time that is drafting, not verifying."""
NO_DRAFT = 0.95
"""A step without a draft over one at depth 0 with a draft loaded."""


@dataclass(frozen=True)
class Kind:
    """A kind of traffic: conditional acceptance per position, answer length in tokens."""

    name: str
    acceptance: tuple[float, ...]
    tokens: int = 120

    @property
    def conditional(self) -> Floats:
        tail = (self.acceptance[-1],) * (DEPTH - len(self.acceptance))
        return np.array(self.acceptance + tail)


FRIENDLY = Kind("friendly", (0.97, 0.96, 0.96, 0.95, 0.95, 0.94, 0.94))
HOSTILE = Kind("hostile", (0.12, 0.08, 0.05))
LONG = Kind("long", (0.9, 0.75, 0.55, 0.4, 0.3), 200)


@dataclass(frozen=True)
class Phase:
    """``kinds`` take turns; ``batch`` requests at a time; ``requests`` in all."""

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


def step_ms(batch: int, verified: float, depth: int) -> float:
    """The table between its points; verified tokens count as their share of a full width."""

    def at(d: float) -> float:
        rows = [np.interp(d, MEASURED_DEPTHS, row) for row in COST_MS]
        return float(np.interp(batch, MEASURED_BATCHES, rows))

    base = at(0)
    width = verified / batch
    return base + DRAFT_SHARE * (at(depth) - base) + (1 - DRAFT_SHARE) * (at(width) - base)


@dataclass
class Running:
    name: str
    kind: Kind
    left: int
    width: int = 0


Chooser = Callable[[Sequence[Running]], tuple[int, Ints]]


@dataclass
class Lane:
    """One way to choose depths, run over all phases."""

    name: str
    choose: Chooser
    planner: DepthPlanner | None = None
    factor: float = 1.0


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


def fixed(depth: int) -> Chooser:
    return lambda running: (depth, np.full(len(running), depth))


def oracle(running: Sequence[Running]) -> tuple[int, Ints]:
    """Greedy over true survivals for every depth: no approximation but the step's own horizon."""
    survival = np.cumprod([r.kind.conditional for r in running], axis=1)
    best = (len(running) / step_ms(len(running), 0, 0), 0, np.zeros(len(running), dtype=np.int64))
    for depth in range(1, DEPTH + 1):
        order = np.sort(survival[:, :depth].ravel())[::-1]
        gains = np.concatenate([[0.0], np.cumsum(order)])
        counts = np.arange(len(gains))
        times = np.array([step_ms(len(running), float(n), depth) for n in counts])
        rates = (len(running) + gains) / times
        n = int(rates.argmax())
        if rates[n] > best[0]:
            least = order[n - 1] if n else 2.0
            best = (float(rates[n]), depth, (survival[:, :depth] >= least).sum(axis=1))
    return best[1], best[2]


def planned(planner: DepthPlanner) -> Chooser:
    def choose(running: Sequence[Running]) -> tuple[int, Ints]:
        names = [r.name for r in running]
        plan = planner.plan(names, [min(DEPTH, max(0, r.left - 1)) for r in running])
        return plan.depth, np.array(plan.widths)

    return choose


def run(
    lane: Lane,
    phases: Sequence[Phase],
    seed: int,
    noise: float = 0.05,
    slowness: Callable[[int], float] = lambda _: 1.0,
) -> list[PhaseResult]:
    """Every phase to its last request. Equal seeds draw equal requests for every lane.

    ``slowness`` of the machine at a phase's n-th step: times are observed times that, and counted
    without it.
    """
    rng = np.random.default_rng(seed)
    results = []
    for number, phase in enumerate(phases):
        result = PhaseResult(phase.name)
        waiting = _arrivals(phase, number)
        running = [r for r, _ in zip(waiting, range(phase.batch), strict=False)]
        _add(lane, running)
        while running:
            _step(lane, running, result, rng, noise, slowness(len(result.steps)))
            for index in [i for i, r in enumerate(running) if r.left <= 0][::-1]:
                done = running.pop(index)
                if lane.planner is not None:
                    lane.planner.survival.remove(done.name)
                new = next(waiting, None)
                if new is not None:
                    running.append(new)
                    _add(lane, [new])
        results.append(result)
    return results


def _arrivals(phase: Phase, number: int) -> Iterator[Running]:
    for i in range(phase.requests):
        kind = phase.kinds[i % len(phase.kinds)]
        yield Running(f"{number}-{i}", kind, kind.tokens)


def _add(lane: Lane, new: Sequence[Running]) -> None:
    if lane.planner is not None:
        for r in new:
            lane.planner.survival.add(r.name)


def _step(
    lane: Lane,
    running: list[Running],
    result: PhaseResult,
    rng: np.random.Generator,
    noise: float,
    slowness: float,
) -> None:
    """Verify the drafts of the step before, then draft: that order, as an engine does."""
    depth, widths = lane.choose(running)
    verified = np.array([r.width for r in running])
    draws = rng.random((len(running), DEPTH))
    conditional = np.array([r.kind.conditional for r in running])
    hits = np.cumprod(draws < conditional, axis=1)
    accepted = (hits * (np.arange(1, DEPTH + 1) <= verified[:, None])).sum(axis=1)
    ms = step_ms(len(running), float(verified.sum()), depth) * lane.factor
    seconds = ms / 1e3 * float(rng.lognormal(0.0, noise))
    if rng.random() < 0.005:
        seconds *= 4.0
    tokens = 0
    for r, got, width in zip(running, accepted, widths, strict=True):
        made = min(int(got) + 1, r.left)
        tokens += made
        r.left -= made
        r.width = int(width)
    result.seconds += seconds
    result.tokens += tokens
    result.steps.append((seconds, tokens, depth))
    if lane.planner is not None:
        lane.planner.observe([r.name for r in running], verified.tolist(), accepted.tolist())
        lane.planner.observe_step(len(running), int(verified.sum()), depth, seconds * slowness)


def profiled(planner: DepthPlanner) -> DepthPlanner:
    """What an engine times while it warms up."""
    for batch in (1, 4, 16):
        for depth in (0, 1, 3, DEPTH):
            for _ in range(3):
                planner.cost.observe(
                    batch, batch * depth, depth, step_ms(batch, batch * depth, depth) / 1e3
                )
    return planner


def lanes() -> list[Lane]:
    planner = profiled(DepthPlanner(DEPTH))
    return [
        Lane("none", fixed(0), factor=NO_DRAFT),
        *(Lane(f"K={depth}", fixed(depth)) for depth in (0, 1, 3, 5, 7)),
        Lane("auto", planned(planner), planner),
        Lane("oracle", oracle),
    ]
