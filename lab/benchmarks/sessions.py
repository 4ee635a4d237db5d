"""The depth planner on realistic sessions, simulated: an hour of phases of 5 to 60 seconds.

``lab/benchmarks/sessions_traffic.py`` draws the traffic, and ``lab/benchmarks/regret_sim.py`` has
the step times of the 40-layer demo. Every lane serves each phase for the same time, with the same
requests. The cost of changes of traffic is included. A request's acceptance is drawn around that of
its kind.

    python -m eaglegate.lab.benchmarks.sessions [--minutes 60] [--seeds 2] [--phases]
    python -m eaglegate.lab.benchmarks.sessions --laps
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner import DepthPlanner
from eaglegate.engine.speculation.step_cost import ObservedStep
from eaglegate.lab.benchmarks.regret_sim import DEPTH, profiled, step_ms
from eaglegate.lab.benchmarks.sessions_traffic import (
    SessionPhase,
    SessionRequest,
    make_laps,
    make_sessions,
)

Floats = NDArray[np.floating]
FIXED = (0, 1, 3, 5, 7)
NO_DRAFT = 0.975
"""Measured time of a step without a draft over one at depth 0 with a draft loaded."""
PREFILL_MS = 6.0
"""Milliseconds that a request's prompt adds to the step that reads it."""
PROMPT_TOKENS = 64
SPREAD = 0.5
"""Standard deviation of a request from its kind, in logits of acceptance."""
LAPS = (1, 8), (4, 16), (16, 32)
"""Number of streams, and of requests in a lap."""
LONG_S = 20.0
"""Duration from which phases are compared with the best fixed depth."""
ACCEPTANCE = {
    "friendly": (0.97, 0.96, 0.96, 0.95, 0.95, 0.94, 0.94),
    "structured": (0.94, 0.93, 0.92, 0.91, 0.9, 0.9, 0.9),
    "tools": (0.88, 0.86, 0.84, 0.83, 0.82, 0.81, 0.8),
    "chat": (0.74, 0.7, 0.66, 0.63, 0.6, 0.58, 0.56),
    "long": (0.9, 0.75, 0.55, 0.4, 0.3, 0.3, 0.3),
    "creative": (0.45, 0.4, 0.35, 0.3, 0.3, 0.3, 0.3),
    "hostile": (0.12, 0.08, 0.05, 0.05, 0.05, 0.05, 0.05),
}
"""Conditional acceptance of each kind by position."""
_positions = np.arange(1, DEPTH + 1)
_step_ms = cache(step_ms)


@dataclass
class RunningRequest:
    """Request in decoding; ``width`` is the number of drafts that its next step verifies."""

    request: SessionRequest
    acceptance: Floats
    remaining: int
    width: int = 0


@dataclass
class PhaseResult:
    """Figures of one lane in one phase."""

    phase: SessionPhase
    seconds: float = 0.0
    tokens: int = 0
    depths: list[int] = field(default_factory=lambda: [0] * (DEPTH + 1))

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Lane:
    """One way to choose depths: ``none``, ``K=3`` or ``auto``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.planner = profiled(DepthPlanner(DEPTH)) if name == "auto" else None
        self.factor = NO_DRAFT if name == "none" else 1.0
        self._depth = int(name[2:]) if name.startswith("K=") else 0

    def choose(self, requests: Sequence[RunningRequest]) -> tuple[int, list[int]]:
        if self.planner is None:
            return self._depth, [self._depth] * len(requests)
        bounds = [min(DEPTH, max(0, request.remaining - 1)) for request in requests]
        plan = self.planner.plan([request.request.name for request in requests], bounds)
        return plan.depth, plan.widths

    def begin(self, request: SessionRequest) -> None:
        if self.planner is not None:
            application = request.application
            self.planner.begin(request.name, f"{application.workload}/answer/1k", application.name)

    def end(self, request: SessionRequest) -> None:
        if self.planner is not None:
            self.planner.end(request.name)

    def observe(
        self,
        requests: list[RunningRequest],
        accepted: list[int],
        depth: int,
        seconds: float,
        prompt: int,
    ) -> None:
        if self.planner is None:
            return
        widths = [request.width for request in requests]
        self.planner.observe([request.request.name for request in requests], widths, accepted)
        self.planner.observe_step(ObservedStep(len(requests), sum(widths), depth, seconds, prompt))


def serve(lane: Lane, phases: Sequence[SessionPhase], seed: int) -> list[PhaseResult]:
    """Run every phase for its seconds or all of its requests; then its clients leave."""
    rng = np.random.default_rng(seed)
    results = []
    for phase in phases:
        result = PhaseResult(phase)
        pairs: list[tuple[RunningRequest, Iterator[SessionRequest]]] = []
        supplies = [phase.send(client) for client in range(len(phase.clients))]
        while result.seconds < phase.seconds:
            newcomers = [pair for supply in supplies for pair in _begin(lane, supply)]
            supplies = []
            pairs += newcomers
            if not pairs:
                break
            _step(lane, [request for request, _ in pairs], len(newcomers), result, rng)
            finished_pairs = [pair for pair in pairs if pair[0].remaining <= 0]
            for request, supply in finished_pairs:
                lane.end(request.request)
                supplies.append(supply)
            pairs = [pair for pair in pairs if pair[0].remaining > 0]
        for request, _ in pairs:
            lane.end(request.request)
        results.append(result)
    return results


def _begin(
    lane: Lane, supply: Iterator[SessionRequest]
) -> Iterator[tuple[RunningRequest, Iterator[SessionRequest]]]:
    """Yield a client's next request, if there is one."""
    for request in itertools.islice(supply, 1):
        lane.begin(request)
        yield RunningRequest(request, draw_acceptance(request), request.tokens), supply


def draw_acceptance(request: SessionRequest) -> Floats:
    """Draw a request's conditional acceptance by position: its kind's, shifted in logits."""
    base = np.array(ACCEPTANCE[request.kind])
    shift = np.random.default_rng(list(request.name.encode())).normal(0.0, SPREAD)
    return np.asarray(1 / (1 + (1 / base - 1) * np.exp(-shift)))


def _step(
    lane: Lane,
    requests: list[RunningRequest],
    prompts: int,
    result: PhaseResult,
    rng: np.random.Generator,
) -> None:
    """Verify the drafts of the previous step, then draft, in an engine's order."""
    depth, widths = lane.choose(requests)
    verified_widths = np.array([request.width for request in requests])
    acceptance = np.array([request.acceptance for request in requests])
    hits = np.cumprod(rng.random(acceptance.shape) < acceptance, axis=1)
    accepted = (hits * (_positions <= verified_widths[:, None])).sum(axis=1).tolist()
    batch = len(requests)
    ms = _step_ms(batch, int(verified_widths.sum()), depth) * lane.factor + PREFILL_MS * prompts
    seconds = ms / 1e3 * float(rng.lognormal(0.0, 0.05))
    seconds *= 4.0 if rng.random() < 0.005 else 1.0
    lane.observe(requests, accepted, depth, seconds, PROMPT_TOKENS * prompts)
    for request, num_accepted, width in zip(requests, accepted, widths, strict=True):
        num_made = min(num_accepted + 1, request.remaining)
        result.tokens += num_made
        request.remaining -= num_made
        request.width = width
    result.seconds += seconds
    result.depths[depth] += 1


@dataclass
class Score:
    """Comparison of ``auto`` with the other lanes."""

    total: float
    """Tokens per second over those of the best fixed depth over all phases."""
    best_lane: str
    ratios_over_best: list[tuple[float, PhaseResult, str]]
    """Ratios of long phases to their own best fixed depth."""
    ratios_over_none: list[tuple[float, PhaseResult]]
    planning_us: float


def score(lanes: dict[str, list[PhaseResult]], planning_us: float, long_s: float = LONG_S) -> Score:
    fixed_lanes = [name for name in lanes if name.startswith("K=")]
    totals = {name: sum(s.tokens for s in lanes[name]) for name in lanes}
    seconds = {name: sum(s.seconds for s in lanes[name]) for name in lanes}
    rates = {name: totals[name] / seconds[name] for name in lanes}
    best_lane = max(fixed_lanes, key=lambda name: rates[name])
    ratios_over_best, ratios_over_none = [], []
    for number, auto in enumerate(lanes["auto"]):
        phase_best = max(fixed_lanes, key=lambda name: lanes[name][number].rate)
        ratios_over_none.append((auto.rate / lanes["none"][number].rate, auto))
        if auto.phase.seconds >= long_s:
            ratios_over_best.append((auto.rate / lanes[phase_best][number].rate, auto, phase_best))
    return Score(
        rates["auto"] / rates[best_lane], best_lane, ratios_over_best, ratios_over_none, planning_us
    )


def run(
    phases: Sequence[SessionPhase], seed: int
) -> tuple[dict[str, list[PhaseResult]], DepthPlanner]:
    lanes = [Lane(name) for name in ("none", *(f"K={depth}" for depth in FIXED), "auto")]
    results = {lane.name: serve(lane, phases, seed) for lane in lanes}
    planner = lanes[-1].planner
    assert planner is not None
    return results, planner


def report(minutes: float, seeds: Sequence[int], is_verbose: bool) -> None:
    print(
        "| seed | phases | auto over the best fixed depth | phases of 20 s: at 0.95 of their best "
        "| lowest | median | all phases: at 0.95 of no draft | lowest | planning us |"
    )
    print("|---" * 9 + "|")
    for seed in seeds:
        lanes, planner = run(make_sessions(seed, minutes * 60), seed)
        steps = max(1, sum(planner.totals.depths))
        phase_score = score(lanes, planner.totals.planning_s / steps * 1e6)
        best_ratios = [ratio for ratio, *_ in phase_score.ratios_over_best]
        plain_ratios = [ratio for ratio, _ in phase_score.ratios_over_none]
        print(
            f"| {seed} | {len(plain_ratios)} | {phase_score.total:.3f} ({phase_score.best_lane}) "
            f"| {sum(r >= 0.95 for r in best_ratios)} of {len(best_ratios)} | "
            f"{min(best_ratios):.3f} | {statistics.median(best_ratios):.3f} | "
            f"{sum(r >= 0.95 for r in plain_ratios)} of {len(plain_ratios)} | "
            f"{min(plain_ratios):.3f} | {phase_score.planning_us:.0f} |",
            flush=True,
        )
        if is_verbose:
            for ratio, auto, phase_best in sorted(
                phase_score.ratios_over_best, key=lambda row: row[0]
            )[:12]:
                print(f"  {ratio:.3f} of {phase_best}: {auto.phase.name}, {auto.depths}")
            for ratio, auto in sorted(phase_score.ratios_over_none, key=lambda row: row[0])[:12]:
                print(f"  {ratio:.3f} of none: {auto.phase.name}, {auto.depths}")


def report_laps(seeds: Sequence[int]) -> None:
    """Print tokens per second over no draft, for friendly laps alternating with hostile ones."""
    print("| streams | requests | kind | K=0 | K=7 | best fixed | auto |")
    print("|---" * 7 + "|")
    for streams, requests in LAPS:
        runs = [run(make_laps(streams, requests), seed)[0] for seed in seeds]
        for kind in ("friendly", "hostile"):
            rates = {
                name: sum(s.tokens for s in phases) / sum(s.seconds for s in phases)
                for name in runs[0]
                for phases in [
                    [s for results in runs for s in results[name] if s.phase.name == kind]
                ]
            }
            ratios = {name: rate / rates["none"] for name, rate in rates.items()}
            best_ratio = max(ratios[f"K={depth}"] for depth in FIXED)
            print(
                f"| {streams} | {requests} | {kind} | {ratios['K=0']:.2f} | {ratios['K=7']:.2f} "
                f"| {best_ratio:.2f} | {ratios['auto']:.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--phases", action="store_true", help="also print the lowest phases")
    parser.add_argument(
        "--laps", action="store_true", help="put friendly laps between hostile ones"
    )
    options = parser.parse_args()
    if options.laps:
        report_laps(options.seeds)
    else:
        report(options.minutes, options.seeds, options.phases)


if __name__ == "__main__":
    main()
