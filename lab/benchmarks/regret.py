"""Regret of the depth planner against fixed depths, no draft and an oracle, simulated.

``tests/engine/speculation/regret_sim.py`` is the engine, with known survivals, and step times that
were measured on the 40-layer demo or are shaped like a GPU's (``--gpu``). Every lane serves the
same requests. Usage: ``python -m eaglegate.lab.benchmarks.regret [--seeds 3] [--gpu]``
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from tests.engine.speculation.regret_sim import (
    GPUS,
    PHASES,
    GpuTable,
    Lane,
    PhaseResult,
    lanes,
    run,
)

WINDOW = 200
"""Steps of a window that is compared with serving without a draft."""
SETTLED = 0.95
"""Share of a phase's rate that twenty steps must reach to count as recovered."""


def rate(phases: Sequence[PhaseResult]) -> float:
    return sum(p.tokens for p in phases) / sum(p.seconds for p in phases)


def worst_window(phase: PhaseResult, base: float) -> float:
    """Return the rate of the slowest ``WINDOW`` steps of a phase over ``base``."""
    steps = phase.steps
    windows = [steps[start : start + WINDOW] for start in range(0, max(1, len(steps) - WINDOW), 20)]
    rates = [sum(t for _, t, _ in window) / sum(s for s, _, _ in window) for window in windows]
    return min(rates) / base


def recovery(phase: PhaseResult) -> int:
    """Return the steps until twenty steps reach ``SETTLED`` of the phase's rate."""
    for start in range(len(phase.steps) - 20):
        window = phase.steps[start : start + 20]
        if sum(t for _, t, _ in window) / sum(s for s, _, _ in window) >= SETTLED * phase.rate:
            return start
    return len(phase.steps)


def report(seeds: int, table: GpuTable | None = None) -> None:
    rows: dict[str, dict[str, list[float]]] = {}
    worst_windows: dict[str, list[float]] = {}
    recoveries: dict[str, list[float]] = {}
    planning: list[float] = []
    names: list[str] = []
    for seed in range(seeds):
        lane_list: list[Lane] = lanes(table)
        names = [lane.name for lane in lane_list]
        runs = {lane.name: run(lane, PHASES, seed) for lane in lane_list}
        for number, phase in enumerate(PHASES):
            base = runs["none"][number].rate
            cells = rows.setdefault(phase.name, {name: [] for name in names})
            for name in names:
                cells[name].append(runs[name][number].rate / base)
            worst_windows.setdefault(phase.name, []).append(
                worst_window(runs["auto"][number], base)
            )
            recoveries.setdefault(phase.name, []).append(recovery(runs["auto"][number]))
        totals = rows.setdefault("all", {name: [] for name in names})
        for name in names:
            totals[name].append(rate(runs[name]) / rate(runs["none"]))
        planner = next(lane.planner for lane in lane_list if lane.name == "auto")
        assert planner is not None
        planning.append(planner.totals.planning_s / sum(planner.totals.depths) * 1e6)
    title = f"{table.name}, t" if table else "T"
    print(f"| {title}okens per second over no draft | " + " | ".join(names), end="")
    print(" | regret | worst | recovery |")
    print("|---" * (len(names) + 4) + "|")
    for phase_name, row in rows.items():
        means = " | ".join(f"{statistics.mean(row[name]):.3f}" for name in names)
        lowest = f"{min(worst_windows[phase_name]):.2f}" if phase_name in worst_windows else ""
        recovery_steps = f"{max(recoveries[phase_name]):.0f}" if phase_name in recoveries else ""
        best_fixed = max(statistics.mean(row[name]) for name in names if name.startswith("K="))
        regret = 1 - statistics.mean(row["auto"]) / best_fixed
        print(f"| {phase_name} | {means} | {regret:.1%} | {lowest} | {recovery_steps} |")
    print(f"\nplanning: {statistics.median(planning):.0f} us a step")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true", help="step times shaped like a GPU's")
    options = parser.parse_args()
    for table in GPUS if options.gpu else (None,):
        report(options.seeds, table)
