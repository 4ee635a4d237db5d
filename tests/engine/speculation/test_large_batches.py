"""The planner at the batches and times of steps of a GPU, against fixed depths."""

from __future__ import annotations

import pytest

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.probes import TIMING_STEPS
from tests.engine.speculation.regret_sim import (
    DEPTH,
    FRIENDLY,
    H100,
    Kind,
    Lane,
    Phase,
    PhaseResult,
    choose_fixed,
    choose_planned,
    profiled,
    run,
)
from tests.engine.speculation.serving_sim import H100_CONTEXTS, Traffic, make_planned

NOTHING = Kind("nothing accepted", (0.03,), 80)
HOSTILE = Kind("hostile", (0.3, 0.2, 0.15), 80)
TYPICAL = Kind("typical", (0.75, 0.68, 0.62, 0.58), 250)


def run_auto(phases: tuple[Phase, ...], seed: int) -> list[PhaseResult]:
    planner = profiled(DepthPlanner(DEPTH, graphs=H100.graphs), H100)
    return run(Lane("auto", choose_planned(planner), planner, table=H100), phases, seed)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("kind", "batch", "requests"), [(HOSTILE, 64, 256), (NOTHING, 64, 256), (TYPICAL, 128, 256)]
)
def test_planner_equals_the_best_fixed_depth(
    kind: Kind, batch: int, requests: int, seed: int
) -> None:
    phases = (Phase("", (kind,), batch, requests),)
    fixed = [
        run(Lane("fixed", choose_fixed(depth), table=H100, depth=depth), phases, seed)[0].rate
        for depth in (0, 1, 3, 7)
    ]
    assert run_auto(phases, seed)[0].rate > 0.975 * max(fixed)


@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize("seed", [0, 1])
def test_changes_of_traffic_are_found_within_thirty_steps(batch: int, seed: int) -> None:
    phases = (
        Phase("", (NOTHING,), batch, 4 * batch),
        Phase("", (FRIENDLY,), batch, 4 * batch),
    )
    nothing, friendly = run_auto(phases, seed)
    depths = [depth for _, _, depth in friendly.steps]
    assert sum(depth == 0 for _, _, depth in nothing.steps) > 0.9 * len(nothing.steps)
    assert depths[30:100].count(0) <= TIMING_STEPS, "one probe of depth 0 at most"


@pytest.mark.parametrize("batch", [256, 512])
def test_a_batch_larger_than_any_timed_one_is_drafted_for_at_once(batch: int) -> None:
    """A probe of a few requests is priced as such, and a plan ends with the times behind it."""
    engine = make_planned(H100_CONTEXTS, DEPTH)
    result = engine.run(Traffic((FRIENDLY,), batch, batch), seed=0)
    depths = [depth for _, _, depth in result.steps]
    assert min(depths[20:25]) >= 2
