"""The table of drafting methods, and the price of a method that always drafts K tokens."""

from __future__ import annotations

import numpy as np
import pytest

from engine.speculation.methods import METHODS, find_method
from engine.speculation.planner import DepthPlanner
from engine.speculation.step_cost import StepCostModel

DEPTH = 7


@pytest.mark.parametrize(
    ("speculation", "name", "full", "skips"),
    [
        ({"method": "eagle3"}, "eagle3", False, True),
        ({"method": "qwen3_next_mtp"}, "mtp", False, True),
        ({"method": "draft_model"}, "draft_model", False, True),
        (
            {"method": "draft_model", "parallel_drafting": True},
            "draft_model with parallel drafting", True, True,
        ),
        ({"method": "suffix"}, "suffix", True, False),
        ({"method": "medusa"}, "medusa", True, True),
        ({"method": "dflash", "parallel_drafting": True}, "dflash", True, True),
    ],
)  # fmt: skip
def test_methods(speculation, name, full, skips):
    method = find_method(speculation)
    assert (method.name, method.always_full, method.skips) == (name, full, skips)
    assert method.known


def test_an_unknown_method_always_drafts_and_is_not_planned():
    method = find_method({"method": "oracle"})
    assert (method.known, method.always_full, method.skips) == (False, True, False)
    assert "oracle is not known" in method.summary
    assert all(found.known for found in METHODS.values())


def drive(planner: DepthPlanner, acceptance: float, steps: int) -> list[int]:
    """Depths planned for one request; a draft token costs a fifth of a step, always all of them."""
    rng = np.random.default_rng(3)
    planner.begin("r", "chat", "")
    depths = []
    for _ in range(steps):
        plan = planner.plan(["r"], [DEPTH])
        width = plan.widths[0]
        accepted = int((rng.random(width) < acceptance).cumprod().sum())
        planner.observe(["r"], [width], [accepted])
        paid = DEPTH if plan.depth else 0
        planner.observe_step(1, width, paid, 0.01 + 0.002 * paid + 0.0001 * width)
        depths.append(plan.depth)
    return depths


def test_a_step_with_any_draft_costs_all_of_them():
    model = StepCostModel(DEPTH, always_full=True)
    for depth in (0, DEPTH) * 40:
        model.observe(1, depth, depth, 0.01 + 0.002 * depth)
    base, _ = model.line(1)
    assert np.ptp(base[1:]) == 0
    assert base[1] > 2 * base[0]


def test_a_method_that_always_drafts_is_planned_whole_or_not_at_all():
    """At 60 % acceptance one draft token would pay at the price of one, not at that of seven."""
    assert np.mean(drive(DepthPlanner(DEPTH, always_full=True), 0.6, 400)[200:]) < 1
    assert np.mean(drive(DepthPlanner(DEPTH, always_full=True), 0.97, 400)[200:]) > 6
