"""The depth planner: survivals, costs, and plans."""

from __future__ import annotations

import numpy as np
import pytest

from eaglegate.engine.speculation.planner.planner import (
    BACKLOG,
    KEPT_STEPS,
    DepthPlan,
    DepthPlanner,
)
from eaglegate.engine.speculation.planner.probes import TIMING_STEPS
from eaglegate.engine.speculation.planner.step_cost import ObservedStep, StepCostModel
from eaglegate.engine.speculation.planner.survival import LEVELS, START, SurvivalEstimator
from eaglegate.engine.types import DepthReason
from tests.engine.speculation.serving_sim import (
    FRIENDLY,
    HOSTILE,
    CpuTable,
    Traffic,
    make_planned,
    profiled,
    step_ms,
)

DEPTH = 7


def feed(estimator: SurvivalEstimator, request: str, width: int, accepted: int, times: int) -> None:
    for _ in range(times):
        estimator.observe([request], [[width]], [[accepted]])


def test_nothing_known_is_the_start() -> None:
    estimator = SurvivalEstimator(DEPTH)
    estimator.add("a")
    assert estimator.survival(["a"])[0, 0] == pytest.approx(START @ LEVELS, abs=0.01)


def test_a_rejection_says_nothing_of_deeper_positions() -> None:
    estimator = SurvivalEstimator(4)
    estimator.add("a")
    feed(estimator, "a", width=4, accepted=1, times=3)
    assert (estimator.trials(["a"])[0] > 0).tolist() == [True, True, False, False]


def test_conditional_acceptance_is_learnt_per_position() -> None:
    estimator = SurvivalEstimator(3)
    estimator.add("a", "chat")
    for accepted in [3, 1] * 60:
        feed(estimator, "a", width=3, accepted=accepted, times=1)
    found = estimator.conditional(["a"])[0]
    assert found == pytest.approx([0.97, 0.53, 0.95], abs=0.08)


def test_a_fall_over_positions_goes_on_beyond_what_was_tried() -> None:
    estimator = SurvivalEstimator(4)
    estimator.add("a")
    for accepted in [2, 2, 1, 1, 1, 0] * 20:
        feed(estimator, "a", width=2, accepted=accepted, times=1)
    estimator.add("b")
    first, second, third, fourth = estimator.conditional(["b"])[0]
    assert first > second > third > fourth > 0


def test_a_request_begins_as_its_slice_and_soon_goes_its_own_way() -> None:
    estimator = SurvivalEstimator(DEPTH)
    for name in "abcd":
        estimator.add(name, "chat")
        feed(estimator, name, width=3, accepted=3, times=20)
    estimator.add("odd", "chat")
    assert estimator.survival(["odd"])[0, 0] > 0.9
    feed(estimator, "odd", width=3, accepted=0, times=8)
    assert estimator.survival(["odd"])[0, 0] < 0.4
    assert estimator.survival(["a"])[0, 0] > 0.9


def begin_taught(levels: dict[str, list[int]]) -> SurvivalEstimator:
    """A slice whose requests ended after ten steps of width 3 with so many accepted, by name."""
    estimator = SurvivalEstimator(DEPTH)
    for name, hits in levels.items():
        for number, accepted in enumerate(hits):
            estimator.add(f"{name}-{number}", "chat", "key")
            feed(estimator, f"{name}-{number}", width=3, accepted=accepted, times=10)
            estimator.remove(f"{name}-{number}")
    return estimator


def test_the_first_step_tells_which_kind_a_request_of_a_mixed_slice_is() -> None:
    """Deep positions, too: requests like it were accepted there."""
    estimator = begin_taught({"friendly": [3] * 6, "hostile": [0] * 6})
    for name, accepted in (("good", 3), ("bad", 0)):
        estimator.add(name, "chat", "key")
        feed(estimator, name, width=3, accepted=accepted, times=1)
    good, bad = estimator.survival(["good", "bad"])
    assert good[DEPTH - 1] > 0.7
    assert bad[0] < 0.3


def test_a_slice_that_has_changed_is_known_after_a_few_requests() -> None:
    estimator = begin_taught({"hostile": [0] * 60, "friendly": [3] * 3})
    estimator.add("next", "chat", "key")
    assert 0.2 < estimator.survival(["next"])[0, 0] < 0.6
    feed(estimator, "next", width=1, accepted=1, times=1)
    assert estimator.survival(["next"])[0, DEPTH - 1] > 0.5


def test_positions_that_nobody_had_tried_are_known_after_their_first_trials() -> None:
    estimator = SurvivalEstimator(DEPTH)
    for number in range(20):
        estimator.add(f"{number}", "chat")
        feed(estimator, f"{number}", width=1, accepted=0, times=4)
        estimator.conditional([f"{number}"])
        estimator.remove(f"{number}")
    names = [*"abcdefgh"]
    for name in names:
        estimator.add(name, "chat")
        feed(estimator, name, width=4, accepted=4, times=1)
    assert estimator.conditional(names)[:, -1].mean() > 0.95


def test_requests_that_run_teach_those_beside_them() -> None:
    estimator = begin_taught({"hostile": [0] * 10})
    for number in range(8):
        estimator.add(f"{number}", "chat", "key")
    estimator.add("untried", "chat", "key")
    before = estimator.survival(["untried"])[0, 0]
    for number in range(8):
        feed(estimator, f"{number}", width=2, accepted=2, times=1)
    assert estimator.survival(["untried"])[0, 0] > before + 0.2


def test_a_new_slice_begins_as_the_others_of_its_tenant() -> None:
    estimator = begin_taught({"friendly": [3] * 20})
    for name, tenant in (("same", "key"), ("other", "another")):
        estimator.add(name, "agent", tenant)
    same, other = estimator.survival(["same", "other"])[:, 0]
    assert same > 0.9
    assert other == pytest.approx(START @ LEVELS, abs=0.01)


def test_a_request_that_moves_or_ends_leaves_its_slice_as_it_was() -> None:
    estimator = begin_taught({})
    for name in "ab":
        estimator.add(name, "chat", "key")
        feed(estimator, name, width=3, accepted=3, times=5)
    estimator.move("a", "agent", "key")
    estimator.survival(["a", "b"])
    slices = estimator._slices
    chat, agent = (slices.rows.rows["key", traffic] for traffic in ("chat", "agent"))
    assert slices.running[[chat, agent]].sum(axis=1) == pytest.approx([1.0, 1.0])
    for name in "ab":
        estimator.remove(name)
    assert slices.running == pytest.approx(0.0, abs=1e-9)
    assert slices.ended[[chat, agent]].sum(axis=1) == pytest.approx([1.0, 1.0])


def test_tenants_teach_one_another_nothing() -> None:
    alone, beside = SurvivalEstimator(DEPTH), SurvivalEstimator(DEPTH)
    for estimator in (alone, beside):
        estimator.add("mine", "chat", "me")
        feed(estimator, "mine", width=5, accepted=4, times=10)
    beside.add("theirs", "chat", "them")
    feed(beside, "theirs", width=5, accepted=0, times=200)
    for estimator in (alone, beside):
        estimator.add("next", "chat", "me")
    assert (alone.survival(["next"]) == beside.survival(["next"])).all()


def test_a_change_of_traffic_takes_deep_positions_along() -> None:
    """Positions that are no longer reached would otherwise be believed for a long time."""
    estimator = SurvivalEstimator(DEPTH)
    estimator.add("a", "chat")
    feed(estimator, "a", width=7, accepted=7, times=300)
    for number in range(30):
        estimator.add(f"new-{number}", "chat")
        feed(estimator, f"new-{number}", width=2, accepted=0, times=2)
    estimator.add("b", "chat")
    assert estimator.survival(["b"])[0, 3] < 0.15


def test_many_requests_come_and_go() -> None:
    estimator = SurvivalEstimator(DEPTH)
    for number in range(300):
        estimator.add(f"{number}", f"slice {number % 40}", f"tenant {number % 20}")
    assert estimator.survival([f"{number}" for number in range(300)]).shape == (300, DEPTH)
    for number in range(300):
        estimator.remove(f"{number}")
    estimator.remove("never there")
    estimator.observe(["gone"], [[3]], [[1]])
    assert "7" not in estimator


@pytest.mark.parametrize("seed", range(3))
def test_step_times_are_learnt(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = StepCostModel(DEPTH)
    for _ in range(400):
        batch, depth = int(rng.choice([1, 4, 16])), int(rng.integers(0, DEPTH + 1))
        seconds = step_ms(batch, batch * depth, depth) / 1e3 * float(rng.lognormal(0, 0.05))
        model.observe(
            ObservedStep(
                batch, batch * depth, depth, seconds * (8.0 if rng.random() < 0.02 else 1.0)
            )
        )
    for batch in (1, 4, 16):
        expected = model.seconds(batch, np.arange(DEPTH + 1) * batch) * 1e3
        true = [step_ms(batch, batch * depth, depth) for depth in range(DEPTH + 1)]
        assert expected == pytest.approx(true, rel=0.12)


def test_a_plan_keeps_the_rates_that_led_to_it() -> None:
    planner = DepthPlanner(DEPTH)
    planner.begin("a", "", "")
    assert planner.plan(["a"], [2]).rates == (), "no time is known"
    for number in range(64):
        depth = number % (DEPTH + 1)
        planner.observe(["a"], [depth], [min(depth, 1)])
        planner.observe_step(ObservedStep(1, depth, depth, step_ms(1, depth, depth) / 1e3))
    planner.plan(["a"], [2])
    plans = [planner.plan(["a"], [2]) for _ in range(20)]
    plan = next(plan for plan in plans if plan.reason is not DepthReason.PROBE)
    assert len(plan.rates) == DEPTH + 1
    assert not any(plan.rates[3:]), "beyond the bound"
    assert plan.rates[plan.depth] >= 0.99 * max(plan.rates) > 0
    assert plan.rates[plan.depth] == pytest.approx(plan.tokens / plan.seconds)
    assert plan.token_price == planner.get_token_price(1)
    planner.observe_step(ObservedStep(1, 1, 2, 0.02), plan)
    planner.observe_step(ObservedStep(1, 1, 2, 0.02))
    step, unplanned = planner.describe(recent=2)["recent"]
    assert step["drafted"] == 2
    assert (step["depth"], step["reason"]) == (plan.depth, plan.reason)
    assert (step["rates"], step["token_price"]) == (plan.rates, plan.token_price)
    assert (unplanned["drafted"], unplanned["depth"], unplanned["rates"]) == (2, None, None)


def test_frozen_means_that_depth() -> None:
    planner = DepthPlanner(DEPTH)
    planner.begin("a", "", "")
    planner.frozen_depth = 2
    plan = planner.plan(["a"], [DEPTH])
    assert (plan.depth, plan.widths, plan.reason) == (2, [2], DepthReason.FROZEN)


def test_a_request_that_brought_its_depth_keeps_it() -> None:
    planner = DepthPlanner(DEPTH)
    for name in ("asked", "other"):
        planner.begin(name, "", "")
    for _ in range(50):
        planner.observe(["asked", "other"], [5, 1], [0, 0])
        plan = planner.plan(["asked", "other"], [5, DEPTH], [5, 0])
        planner.observe_step(ObservedStep(2, 6, plan.depth, 0.01))
        assert plan.depth >= 5
        assert plan.widths[0] == 5
    assert plan.widths[1] <= 1


@pytest.mark.parametrize(
    ("bounds", "floors", "reason"),
    [
        ([5], [5], DepthReason.PINNED),
        ([DEPTH], [DEPTH], DepthReason.PINNED),
        ([5, DEPTH], [5, 0], DepthReason.PINNED),
        ([DEPTH, DEPTH], [0, 0], DepthReason.COST),
        ([2, 2], [0, 0], DepthReason.BOUND),
        ([0], [0], DepthReason.BOUND),
    ],
)
def test_a_step_says_what_decided_its_depth(
    bounds: list[int], floors: list[int], reason: DepthReason
) -> None:
    """The second of the requests, or the only one, has drafts that are all accepted if it may."""
    planner = profiled(DepthPlanner(DEPTH))
    names = ["a", "b"][: len(bounds)]
    for name in names:
        planner.begin(name, "", "")
    hostile = reason is DepthReason.PINNED
    for _ in range(60):
        plan = planner.plan(names, bounds, floors)
        accepted = [0] * len(names) if hostile else plan.widths
        planner.observe(names, plan.widths, accepted)
        if plan.reason not in (DepthReason.PROBE, DepthReason.COLD):
            last = plan
    assert last.reason is reason


def test_a_pinned_request_decides_nothing_where_others_draft_deeper_anyway() -> None:
    planner = profiled(DepthPlanner(DEPTH))
    for name in ("own", "other"):
        planner.begin(name, "", "")
    for _ in range(60):
        plan = planner.plan(["own", "other"], [1, DEPTH], [1, 0])
        planner.observe(["own", "other"], plan.widths, plan.widths)
    assert (plan.depth, plan.reason) == (DEPTH, DepthReason.COST)


@pytest.mark.parametrize("ended", [False, True])
def test_observations_that_wait_for_a_plan_are_bounded(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """No plan is made while, for example, a request is longer than the draft's context."""
    planner = DepthPlanner(DEPTH)
    names = [f"r{number}" for number in range(64)]
    for name in names:
        planner.begin(name, "chat", "")
    learnt: list[int] = []
    real = planner.survival.observe

    def observe(requests: list[str], drafted: list[list[int]], accepted: list[list[int]]) -> None:
        learnt.append(len(drafted))
        real(requests, drafted, accepted)

    monkeypatch.setattr(planner.survival, "observe", observe)
    for step in range(5000):
        planner.observe(names, [1] * 64, [step % 2] * 64)
        if ended and step < 3000:
            planner.begin(f"short-{step}", "chat", "")
            planner.end(f"short-{step}")
    assert sum(learnt) > 5000 - BACKLOG
    assert max(learnt) <= BACKLOG
    assert len(planner.survival._row) <= 64 + BACKLOG
    learnt.clear()
    planner.plan(names, [DEPTH] * 64)
    assert sum(learnt) < BACKLOG
    assert planner.survival.age(names).tolist() == [5000] * 64


def test_bounds_hold() -> None:
    planner = DepthPlanner(DEPTH)
    planner.begin("a", "", "")
    for _ in range(100):
        plan = planner.plan(["a"], [2])
        assert plan.widths[0] <= 2
        planner.observe(["a"], plan.widths, plan.widths)
        planner.observe_step(ObservedStep(1, 2, plan.depth, 0.01))


def test_the_expectation_is_what_comes() -> None:
    engine = make_planned(CpuTable(), DEPTH)
    for kinds in ((FRIENDLY,), (HOSTILE,), (FRIENDLY, HOSTILE)):
        engine.run(Traffic(kinds, 4, 30), seed=11)
    assert engine.planner is not None
    totals = engine.planner.totals
    assert totals.expected_tokens == pytest.approx(totals.committed_tokens, rel=0.03)
    assert totals.expected_s == pytest.approx(totals.taken_s, rel=0.05)


def plan_for(planner: DepthPlanner, names: list[str], accepted: int | None = None) -> DepthPlan:
    """One step: plan it, verify the widths, accept so many of each, or all."""
    plan = planner.plan(names, [DEPTH] * len(names))
    hits = plan.widths if accepted is None else [min(width, accepted) for width in plan.widths]
    planner.observe(names, plan.widths, hits)
    planner.observe_step(ObservedStep(len(names), sum(plan.widths), plan.depth, 0.01))
    return plan


def test_a_plan_is_kept_while_nothing_is_learnt() -> None:
    planner = profiled(DepthPlanner(DEPTH))
    names = ["a", "b"]
    for name in names:
        planner.begin(name, "chat", "")
    while (plan := plan_for(planner, names, 0)).depth or plan.reason is DepthReason.PROBE:
        pass
    plans = [plan_for(planner, names, 0) for _ in range(200)]
    made = len({id(plan) for plan in plans})
    assert made < 40, f"{made} plans in 200 steps without a draft"
    assert DepthReason.PROBE in {plan.reason for plan in plans}, "it still looks for a change"
    last = plans[-1]
    planner.begin("c", "chat", "")
    assert planner.plan([*names, "c"], [DEPTH] * 3) is not last
    assert planner.plan(names, [DEPTH, 0]).widths[1] == 0


def test_a_plan_is_made_anew_after_two_steps_of_another_time() -> None:
    planner = DepthPlanner(DEPTH)
    planner.begin("a", "chat", "key")
    for _ in range(20):
        planner.observe_step(ObservedStep(1, 0, 0, 0.01))
    plan = planner.plan(["a"], [0])
    planner.observe_step(ObservedStep(1, 0, 0, 0.05))
    assert planner.plan(["a"], [0]) is plan, "one step may be an outlier"
    planner.observe_step(ObservedStep(1, 0, 0, 0.05))
    assert planner.plan(["a"], [0]) is not plan


def test_a_fast_step_at_the_best_depth_pays_no_probe_back() -> None:
    planner, refunds = DepthPlanner(DEPTH), []
    planner._probes.refund = refunds.append  # type: ignore[method-assign]
    for depth in [0, 1] * 10:
        planner.observe_step(ObservedStep(1, depth, depth, 0.01))
    planner.observe_step(ObservedStep(1, 0, 0, 0.005))
    assert not refunds
    planner.observe_step(ObservedStep(1, 1, 1, 0.005))
    assert len(refunds) == 1


def test_a_plan_is_kept_while_all_drafts_are_accepted() -> None:
    planner = profiled(DepthPlanner(DEPTH))
    planner.begin("a", "chat", "")
    plans = [plan_for(planner, ["a"]) for _ in range(40)]
    before = plans[-1]
    assert before.depth == DEPTH
    assert len({id(plan) for plan in plans[-KEPT_STEPS:]}) <= 2
    plan_for(planner, ["a"], 1)
    assert planner.plan(["a"], [DEPTH]) is not before
    planner.move("a", "other", "")
    kept = planner.plan(["a"], [DEPTH])
    planner.move("a", "chat", "")
    assert planner.plan(["a"], [DEPTH]) is not kept


def test_the_first_outcomes_of_a_new_request_are_planned_with_at_once() -> None:
    planner = profiled(DepthPlanner(DEPTH))
    planner.begin("easy", "chat", "")
    for _ in range(40):
        plan_for(planner, ["easy"])
    planner.end("easy")
    planner.begin("hard", "chat", "")
    plans = [plan_for(planner, ["hard"], 0) for _ in range(3)]
    assert plans[0].depth == DEPTH
    assert len({id(plan) for plan in plans}) == len(plans)


def test_a_new_request_joins_a_plan_in_which_all_verify_all_drafts() -> None:
    planner = profiled(DepthPlanner(DEPTH))
    for name in ("a", "b", "new", "own"):
        planner.begin(name, "chat", "")
    for _ in range(40):
        plan_for(planner, ["a", "b"])
    before = planner.plan(["a", "b"], [DEPTH] * 2)
    joined = planner.plan(["b", "new"], [DEPTH, 2])
    assert (joined.tokens, joined.widths) == (before.tokens, [DEPTH, 2])
    planner.end("a")
    planner.observe(["b", "new"], joined.widths, [DEPTH, 0])
    assert planner.plan(["own"], [2], [2]).tokens != before.tokens, "nobody of the plan is left"
    assert "a" not in planner.survival


@pytest.mark.parametrize("again", [False, True])
def test_the_widths_of_a_request_that_has_ended_count_for_its_slice(again: bool) -> None:
    planner = profiled(DepthPlanner(DEPTH))
    planner.begin("a", "story", "")
    plans = [plan_for(planner, ["a"]) for _ in range(5)]
    planner.end("a")
    if again:
        planner.begin("a", "chat", "")
    (story,) = [one for one in planner.describe()["traffic"] if one["traffic"] == "story"]
    assert sum(story["requests_by_depth"]) == len(plans)


def test_a_new_request_joins_no_plan_that_verifies_less_or_drafts_less_than_it_asks_for() -> None:
    planner = profiled(DepthPlanner(DEPTH))
    for name in ("a", "b", "new", "own"):
        planner.begin(name, "chat", "")
    for _ in range(60):
        before = planner.plan(["a", "b"], [DEPTH] * 2)
        planner.observe(["a", "b"], before.widths, [before.widths[0], 0])
    assert before.widths[1] < before.depth
    assert planner.plan(["a", "new"], [DEPTH] * 2).tokens != before.tokens
    planner.frozen_depth = 1
    planner.plan(["a"], [DEPTH])
    planner.frozen_depth = None
    deeper = planner.plan(["a", "own"], [DEPTH] * 2, [0, DEPTH])
    assert deeper.depth == DEPTH and deeper.widths[1] == DEPTH


def test_making_drafts_and_verifying_them_cost_apart() -> None:
    """Steps that only draft, and steps that only verify: where the depth changes."""
    rng = np.random.default_rng(3)
    model = StepCostModel(DEPTH)
    costs = {(0, 0): 10.0, (1, 0): 10.5, (0, 4): 13.0, (1, 4): 13.5}
    for _ in range(600):
        depth, verified = list(costs)[rng.integers(4)]
        seconds = costs[depth, verified] * 1e-3 * float(rng.lognormal(0, 0.03))
        model.observe(ObservedStep(4, verified, depth, seconds))
    for (depth, verified), ms in costs.items():
        expected_s, _ = model.observe(ObservedStep(4, verified, depth, ms / 1e3))
        assert expected_s * 1e3 == pytest.approx(ms, rel=0.04)


def test_probes_do_not_make_steps_without_drafts_look_slow() -> None:
    """Sampled requests: to verify costs a half more, and it falls into steps of depth 0."""
    rng = np.random.default_rng(5)
    model = profiled(DepthPlanner(DEPTH)).cost
    base = step_ms(16, 0, 0)
    believed = []
    for _ in range(60):
        for depth, verified, ms in ((0, 0, base), (1, 0, 1.02 * base), (0, 16, 1.5 * base)):
            model.observe(
                ObservedStep(16, verified, depth, ms * 1e-3 * float(rng.lognormal(0, 0.03)))
            )
            believed.append(model.seconds(16, np.arange(DEPTH + 1) * 16.0) * 1e3)
    none, one, *_ = np.mean(believed[-90:], axis=0)
    assert none == pytest.approx(base, rel=0.05)
    assert one > 1.35 * base


def test_a_probe_lasts_two_steps_at_most() -> None:
    """A probe's drafts are verified a step later: until then no observation would end the probe."""
    planner = profiled(DepthPlanner(DEPTH))
    planner.begin("a", "chat", "")
    plans, verified = [], 0
    for _ in range(300):
        plan = planner.plan(["a"], [DEPTH])
        planner.observe(["a"], [verified], [0])
        planner.observe_step(
            ObservedStep(1, verified, plan.depth, step_ms(1, verified, plan.depth) / 1e3)
        )
        verified = plan.widths[0]
        plans.append(plan)
    probes = [plan for plan in plans if plan.reason is DepthReason.PROBE]
    assert probes
    assert len(probes) <= TIMING_STEPS * len({id(plan) for plan in probes})


def test_a_slow_machine_does_not_make_one_depth_look_worse() -> None:
    """The machine takes half as long again for a while, in which all steps are without drafts."""
    model = StepCostModel(DEPTH)
    for number in range(300):
        depth = number // 5 % 4
        model.observe(ObservedStep(4, 4 * depth, depth, step_ms(4, 4 * depth, depth) / 1e3))

    def compare() -> float:
        seconds = model.seconds(4, 4.0 * np.arange(DEPTH + 1))
        return float(seconds[0] / seconds[3])

    before = compare()
    found = []
    for _ in range(120):
        model.observe(ObservedStep(4, 0, 0, 1.5 * step_ms(4, 0, 0) / 1e3))
        found.append(compare() / before)
    assert max(found) < 1.06


def test_depths_that_were_not_seen_do_not_look_cheaper_than_the_one_in_use() -> None:
    """A batch size that takes longer than its line says, seen at one depth alone."""
    rng = np.random.default_rng(7)
    model = profiled(DepthPlanner(DEPTH)).cost
    for batch, extra in ((1, 1.0), (4, 1.15)):
        for _ in range(300):
            ms = extra * step_ms(batch, DEPTH * batch, DEPTH) * float(rng.lognormal(0, 0.03))
            model.observe(ObservedStep(batch, DEPTH * batch, DEPTH, ms / 1e3))
    believed = model.seconds(4, np.arange(DEPTH + 1) * 4.0)
    true = [step_ms(4, depth * 4, depth) for depth in (DEPTH - 1, DEPTH)]
    assert believed[-1] / believed[-2] == pytest.approx(true[1] / true[0], rel=0.03)


def test_no_draft_is_made_that_is_not_verified() -> None:
    """Deep steps that were timed on a faster machine look cheaper than no drafts."""
    planner = profiled(DepthPlanner(DEPTH))
    for _ in range(100):
        planner.observe_step(ObservedStep(1, 0, 0, step_ms(1, 0, 0) / 1e3))
        planner.observe_step(ObservedStep(1, 4, 4, 0.6 * step_ms(1, 4, 4) / 1e3))
    planner.begin("a", "chat", "")
    for _ in range(200):
        plan = plan_for(planner, ["a"], 0)
        assert not plan.depth or any(plan.widths)


def test_steps_with_other_tokens_teach_times_and_no_acceptance() -> None:
    planner = DepthPlanner(DEPTH)
    planner.begin("a", "chat", "")
    planner.plan(["a"], [DEPTH])
    before = planner.survival.conditional(["a"]).tolist()
    for _ in range(8):
        planner.observe([], (), (), other_tokens=9)
        planner.observe_step(ObservedStep(1, 8, 1, 0.02))
        planner.plan(["a"], [DEPTH])
    description = planner.describe(recent=1)
    assert planner.survival.conditional(["a"]).tolist() == before
    assert description["recent"][0]["tokens"] == 9
    assert description["committed_tokens"] == 0
    price = planner.get_token_price(1)
    assert price is not None
    assert 0 < price < 1
