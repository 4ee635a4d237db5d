"""Regret of the depth planner step by step: one engine changes its lane every forty steps.

On a shared machine, lanes on separate engines or in blocks of seconds differ by a tenth, so regret
of two percent would not be visible. Here all lanes run on the same engine and serve the same
requests: the planner (``auto``), fixed depths, and ``right``, the best fixed depth of each kind of
request. They take turns in an order drawn anew for every cycle, for ``SWITCH`` steps each, of which
the first ``SKIPPED`` are not counted. Steps with a prompt are left out. The planner learns only in
its own steps, and its planning time counts only there.

    python -m eaglegate.lab.training.cost_scaled --identity-layers 32 --out DIR
    python -m eaglegate.lab.benchmarks.regret_switch DIR [--phase-s 60] [--phases "hostile 4" ...]

Prints the tokens per second over those at the best fixed depth, compared within each cycle, with
the standard error over cycles, and the share of planning in the planner's seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner import DepthPlan, DepthPlanner
from eaglegate.engine.speculation.step_cost import ObservedStep
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase, scheduler
from eaglegate.lab.benchmarks.regret_engine import (
    FIXED,
    MOST,
    PHASES,
    RIGHT,
    Block,
    Phase,
    Traffic,
    describe_target,
    serve,
)
from tests.engine.drive import run_engine

SWITCH = 40
SKIPPED = 4
"""Steps after a change that still verify or pay for the previous lane's drafts."""
LANES = ("auto", "right", *(f"K={depth}" for depth in FIXED))
NAMED = "REGRET_LANES"
"""Environment variable of the engine's process with its lanes."""
Floats = NDArray[np.floating[Any]]


class SwitchingPlanner(DepthPlanner):
    """Planner that is only asked in the steps of its own lane."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self._draw = random.Random(0)
        self._lanes = os.environ.get(NAMED, "").split(",")
        self._queue: list[str] = []
        self._lane = "auto"
        self._steps = -math.inf
        """Steps of the lane, which does not end before the first call of ``describe``."""
        self._planned_s = 0.0
        self._segment = make_segment(self._lane)
        self._segments: list[list[Any]] = []

    def plan(
        self, requests: Sequence[str], bounds: list[int], floors: list[int] | None = None
    ) -> DepthPlan:
        if self._steps >= SWITCH:
            self._switch()
        self.frozen_depth = None
        if self._lane != "auto":
            depths = map(self._get_depth, requests)
            bounds = [min(pair) for pair in zip(bounds, depths, strict=True)]
            self.frozen_depth = max(bounds, default=0)
        start_s = self.totals.planning_s
        plan = super().plan(requests, bounds, floors)
        self._planned_s = self.totals.planning_s - start_s
        return plan

    def observe(
        self,
        requests: Sequence[str],
        drafted: Sequence[int],
        accepted: Sequence[int],
        matches: Sequence[int] | None = None,
    ) -> None:
        if self._is_learning():
            super().observe(requests, drafted, accepted, matches)
        self._committed = len(requests) + sum(accepted)

    def observe_step(self, step: ObservedStep, plan: DepthPlan | None = None) -> None:
        self._steps += 1
        if self._is_learning():
            super().observe_step(step, plan)
        if self._steps <= SKIPPED:
            return
        seconds = step.seconds - (0.0 if self._lane == "auto" else self._planned_s)
        self._segment[1] += self._committed
        self._segment[2] += seconds
        self._segment[3] += 1
        self._segment[4] += self._planned_s

    def describe(self, recent: int = 0) -> dict[str, object]:
        """Return complete segments since the last call: lane, tokens, seconds, steps, planning."""
        segments, self._segments = self._segments, []
        self._steps, self._segment = 0, make_segment(self._lane)
        return super().describe(recent) | {"segments": segments}

    def _switch(self) -> None:
        self._segments.append(self._segment)
        if not self._queue:
            self._queue = list(self._lanes)
            self._draw.shuffle(self._queue)
        self._lane, self._steps = self._queue.pop(), 0
        self._segment = make_segment(self._lane)
        self._is_fresh = True

    def _is_learning(self) -> bool:
        return self._lane == "auto" and (self._steps < 0 or self._steps > SKIPPED)

    def _get_depth(self, request: str) -> int:
        if self._lane == "right":
            return next((d for kind, d in RIGHT.items() if request[0] == kind[0]), MOST)
        return int(self._lane[2:])


def make_segment(lane: str) -> list[Any]:
    """Make a lane's segment: tokens, seconds, steps, and seconds of planning."""
    return [lane, 0, 0.0, 0, 0.0]


def switching_scheduler(*args: Any, **kwargs: Any) -> DepthSchedulerBase:
    """Make a scheduler whose planner switches, with CPU times. ``scheduler_cls`` names this
    function.
    """
    depth_scheduler = scheduler(*args, **kwargs)
    planning: Any = depth_scheduler.planning
    planning._make_planner = lambda _mode: SwitchingPlanner(int(depth_scheduler.num_spec_tokens))
    planning.clock = time.thread_time
    return depth_scheduler


async def measure(
    demo: Path, phases: Sequence[Phase], lanes: Sequence[str], phase_s: float, out: Path | None
) -> None:
    os.environ[NAMED] = ",".join(lanes)
    target = describe_target(demo)
    traffic = Traffic(VllmRenderer(make_demo_arguments(**target)))
    async with run_engine(
        **target,
        speculative_config={"model": str(demo / "eagle3_1"), "num_speculative_tokens": MOST},
        planning="auto",
        scheduler_cls="eaglegate.lab.benchmarks.regret_switch.switching_scheduler",
    ) as engine:
        results: dict[str, Any] = {}
        for number, phase in enumerate(phases):
            start_planning = await engine.describe_planning(0)
            supply = [
                (
                    (kind, replace(request, workload=kind, tenant=kind))
                    for kind, request in traffic.make(phase, number, client)
                )
                for client in range(phase.batch)
            ]
            await serve(engine, supply, phase_s, Block(phase.name, "", 0.0, 0.0, 0, 0.0))
            results[phase.name] = await engine.describe_planning(0)
            print_phase(phase.name, lanes, results[phase.name], start_planning)
            if out is not None:
                await asyncio.to_thread(out.write_text, json.dumps(results))


def print_phase(
    name: str, lanes: Sequence[str], planner: dict[str, Any], start_planning: dict[str, Any]
) -> None:
    cycles = list(group_cycles(planner["segments"], len(lanes)))
    rates = {lane: np.array([cycle[lane] for cycle in cycles]) for lane in lanes}
    fixed_lanes = [lane for lane in lanes if lane.startswith("K=")]
    best_lane = max(fixed_lanes, key=lambda lane: rates[lane].sum())
    cells = [compare(rates[lane], rates[best_lane]) for lane in lanes]
    auto_segments = [segment for segment in planner["segments"] if segment[0] == "auto"]
    share = sum(s[4] for s in auto_segments) / (sum(s[2] for s in auto_segments) or 1.0)
    reasons = {
        reason: count - start_planning["steps_by_reason"][reason]
        for reason, count in planner["steps_by_reason"].items()
    }
    cells += [best_lane, str(len(cycles)), f"{share:.2%}", str(reasons)]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def group_cycles(segments: list[list[Any]], lanes: int) -> Iterator[dict[str, float]]:
    """Yield the logarithm of every lane's tokens per second for each complete cycle."""
    cycle: dict[str, float] = {}
    for lane, tokens, seconds, steps, _ in segments:
        if lane in cycle:
            cycle = {}
        if steps:
            cycle[lane] = math.log(tokens / seconds)
        if len(cycle) == lanes:
            yield cycle
            cycle = {}


def compare(rates: Floats, base: Floats) -> str:
    """Return the geometric mean of ratios within cycles, and its logarithm's standard error."""
    if len(rates) < 2:
        return "-"
    ratios = rates - base
    error = float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    return f"{math.exp(ratios.mean()):.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument(
        "--phase-s",
        type=float,
        default=60.0,
        help="length of a phase, in CPU seconds of the engine",
    )
    parser.add_argument("--phases", nargs="*", default=[])
    parser.add_argument("--lanes", nargs="*", choices=LANES, default=LANES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    phases = [phase for phase in PHASES if not options.phases or phase.name in options.phases]
    lanes = options.lanes
    if not any(lane.startswith("K=") for lane in lanes):
        parser.error("--lanes: name a fixed depth, too, such as K=3")
    print(f"| phase | {' | '.join(lanes)} | best fixed | cycles | planning | steps by reason |")
    asyncio.run(measure(options.demo, phases, lanes, options.phase_s, options.out))


if __name__ == "__main__":
    main()
