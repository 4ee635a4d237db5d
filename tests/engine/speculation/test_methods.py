"""The table of drafting methods, and the price of a method that always drafts K tokens."""

from __future__ import annotations

import numpy as np
import pytest

from eaglegate.engine.speculation.drafts.inspection.case import METHODS as KNOWN
from eaglegate.engine.speculation.drafts.methods import (
    FULL_RUNS,
    FULL_SKIPS,
    METHODS,
    STEP_SKIPS,
    Runner,
    StepDepth,
    find_method,
)
from eaglegate.engine.speculation.planner.found_share import FoundShare
from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep, StepCostModel

DEPTH = 7


@pytest.mark.parametrize(
    ("speculation", "name", "first", "second"),
    [
        ({"method": "eagle3"}, "eagle3", STEP_SKIPS, STEP_SKIPS),
        ({"method": "qwen3_next_mtp"}, "mtp", STEP_SKIPS, STEP_SKIPS),
        ({"method": "draft_model"}, "draft_model", STEP_SKIPS, FULL_RUNS),
        (
            {"method": "draft_model", "parallel_drafting": True},
            "draft_model with parallel drafting", FULL_SKIPS, FULL_SKIPS,
        ),
        ({"method": "suffix"}, "suffix", FULL_RUNS, FULL_RUNS),
        ({"method": "medusa"}, "medusa", FULL_SKIPS, FULL_SKIPS),
        ({"method": "dflash", "parallel_drafting": True}, "dflash", FULL_SKIPS, FULL_RUNS),
        ({"method": "dspark"}, "dspark", FULL_RUNS, FULL_RUNS),
    ],
)  # fmt: skip
def test_methods(speculation, name, first, second):
    """vLLM moves a method that one runner lacks to the other."""
    method = find_method(speculation)
    assert method.name == name and method.is_known and method.runs
    assert method.on(Runner.FIRST) is first
    assert method.on(Runner.SECOND) is second


def test_a_method_that_is_not_known_stays_at_k():
    method = find_method({"method": "oracle"})
    assert not method.is_known
    assert {method.on(runner).depth for runner in Runner} == {StepDepth.FIXED}
    assert method.summary == (
        "drafts and verifies K tokens at every step: eaglegate does not know method oracle"
    )


def test_the_table_names_every_method_that_inspection_knows():
    """Two more make no drafts of their own and stay at their fixed depth."""
    fixed = {"custom_class", "extract_hidden_states"}
    assert {find_method({"method": name}).name for name in KNOWN - fixed} == set(METHODS)
    assert not any(find_method({"method": name}).is_known for name in fixed)


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
        planner.observe_step(ObservedStep(1, width, paid, 0.01 + 0.002 * paid + 0.0001 * width))
        depths.append(plan.depth)
    return depths


def test_a_step_with_any_draft_costs_all_of_them():
    model = StepCostModel(DEPTH, always_full=True)
    for depth in (0, DEPTH) * 40:
        model.observe(ObservedStep(1, depth, depth, 0.01 + 0.002 * depth))
    base = model.mixed_seconds(1, np.zeros(DEPTH + 1))
    assert np.ptp(base[1:]) == 0
    assert base[1] > 2 * base[0]


def test_a_method_that_always_drafts_is_planned_whole_or_not_at_all():
    """60 % acceptance would pay for one draft token at the price of one, not at the price of
    seven."""
    assert np.mean(drive(DepthPlanner(DEPTH, always_full=True), 0.6, 400)[200:]) < 1
    assert np.mean(drive(DepthPlanner(DEPTH, always_full=True), 0.97, 400)[200:]) > 6


def drive_lookup(share: float, acceptance: float, draft_s: float, steps: int = 600) -> DepthPlanner:
    """One request of a lookup that finds all K drafts in a share of steps, and else none.

    A verified token costs 15 % of a step, as on a busy engine. Steps were timed at the start.
    """
    rng = np.random.default_rng(5)
    planner = DepthPlanner(DEPTH, always_full=True, lookup=True)

    def take(found: int, depth: int) -> None:
        seconds = 0.01 + 0.0015 * found + draft_s * (depth > 0)
        planner.observe_step(ObservedStep(1, found, DEPTH if depth else 0, seconds))

    for depth, found in ((0, 0), (DEPTH, 0), (DEPTH, DEPTH)):
        for _ in range(12):
            take(found, depth)
    planner.begin("r", "chat", "")
    for _ in range(steps):
        plan = planner.plan(["r"], [DEPTH])
        found = plan.widths[0] * int(rng.random() < share)
        accepted = int((rng.random(found) < acceptance).cumprod().sum())
        planner.observe(["r"], plan.widths, [accepted], [found])
        take(found, plan.depth)
    return planner


def count_shallow(planner: DepthPlanner) -> float:
    """Share of all steps that were planned at depth 0."""
    return planner.totals.depths[0] / sum(planner.totals.depths)


def test_drafts_that_a_lookup_does_not_find_cost_nothing():
    """Found in one step of ten and then accepted, they pay although most planned ones bring
    nothing; found as rarely and never accepted, they do not.
    """
    assert count_shallow(drive_lookup(0.1, 0.98, draft_s=0.0)) < 0.2
    assert count_shallow(drive_lookup(0.1, 0.02, draft_s=0.0)) > 0.6


def test_a_lookup_that_finds_nothing_is_worth_no_time():
    assert count_shallow(drive_lookup(0.0, 0.9, draft_s=0.002)) > 0.6


def test_a_fixed_depth_is_priced_by_the_drafts_that_are_found():
    totals = drive_lookup(0.0, 0.9, draft_s=0.0).totals
    assert totals.fixed_s[DEPTH] < 1.2 * totals.fixed_s[0]


def test_the_share_of_drafts_found():
    share = FoundShare(3)
    assert share.estimate(["new"]).tolist() == [[1.0, 1.0, 1.0]]
    for _ in range(200):
        share.observe(["a", "b"], [3, 3], [2, 0])
    assert share.estimate(["a"])[0] == pytest.approx([1.0, 1.0, 0.0], abs=0.12)
    assert share.estimate(["b"])[0] == pytest.approx([0.0, 0.0, 0.0], abs=0.12)
    assert share.estimate(["new"])[0] == pytest.approx([0.5, 0.5, 0.0], abs=0.05)
    share.remove("a")
    assert share.estimate(["a"])[0] == pytest.approx([0.5, 0.5, 0.0], abs=0.05)
