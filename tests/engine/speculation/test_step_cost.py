"""Handing over a model of step costs to another one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep, StepCostModel
from tests.engine.speculation.serving_sim import profiled, step_ms

DEPTH = 7


@pytest.fixture
def learnt() -> StepCostModel:
    return profiled(DepthPlanner(DEPTH)).cost


def believe(model: StepCostModel) -> list[list[float]]:
    widths = np.arange(DEPTH + 1)
    return [model.seconds(batch, widths * float(batch)).tolist() for batch in (1, 4, 16, 64)]


def test_another_model_goes_on_from_it(learnt: StepCostModel) -> None:
    """Plain numbers carry the state over; neither model is changed by the other's later
    observations."""
    exported = learnt.export()
    sent = json.loads(json.dumps(exported))
    first, second = StepCostModel(DEPTH), StepCostModel(DEPTH)
    assert not first.is_known
    assert first.restore(sent) and second.restore(sent)
    assert first.is_known
    assert believe(first) == believe(second)
    assert np.array(believe(first)) == pytest.approx(np.array(believe(learnt)), rel=0.05)
    for _ in range(20):
        first.observe(ObservedStep(4, 12, 3, 2e-3 * step_ms(4, 12, 3)))
    assert believe(first) != believe(second)
    assert second.export() == exported


def test_a_known_speed_is_found_again_where_the_machine_is_slower(learnt: StepCostModel) -> None:
    model = StepCostModel(DEPTH)
    assert model.restore(learnt.export())
    for _ in range(40):
        model.observe(ObservedStep(4, 12, 3, 3e-3 * step_ms(4, 12, 3)))
    assert model.observe(ObservedStep(4, 12, 3, 3e-3 * step_ms(4, 12, 3)))[0] == pytest.approx(
        3e-3 * step_ms(4, 12, 3), rel=0.1
    )


def test_a_single_time_of_a_rare_step_makes_no_depth_look_dear(learnt: StepCostModel) -> None:
    """A step that verifies drafts of depth 5 and makes one draft occurs when the depth changes."""
    known = np.array(believe(learnt))
    learnt.observe(ObservedStep(1, 5, 1, 4e-3 * step_ms(1, 5, 1)))
    assert np.array(believe(learnt)) == pytest.approx(known, rel=0.05)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("context_ms", [0.5, 2.0, 6.0, 20.0])
def test_long_contexts_are_learnt_after_short_prompts_were_timed(
    batch: int, context_ms: float
) -> None:
    """The model has no term for the time that a step takes to read its requests' contexts."""
    planner = profiled(DepthPlanner(DEPTH))
    names, noise, widths = [str(n) for n in range(batch)], np.random.default_rng(3), [0] * batch
    for name in names:
        planner.begin(name, "", "")
    depths = np.arange(DEPTH + 1)
    true_ms = [step_ms(batch, batch * depth, depth) + context_ms * batch for depth in depths]
    rates = np.cumsum(0.8**depths) / true_ms
    regrets = []
    for _ in range(400):
        plan = planner.plan(names, [DEPTH] * batch)
        accepted = np.minimum(noise.geometric(0.2, batch) - 1, widths).tolist()
        planner.observe(names, widths, accepted)
        seconds = (step_ms(batch, sum(widths), plan.depth) + context_ms * batch) / 1e3
        seconds *= float(noise.lognormal(0, 0.02))
        planner.observe_step(ObservedStep(batch, sum(widths), plan.depth, seconds))
        widths = plan.widths
        regrets.append(1 - rates[plan.depth] / rates.max())
    assert np.mean(regrets[100:]) < 0.05


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 0), (0, "1"), (0, None), (2, DEPTH + 1), (3, -1.0), (3, math.nan), (4, -1), (5, 7)],
)
def test_foreign_state_is_refused_and_changes_nothing(
    learnt: StepCostModel, place: int, value: object
) -> None:
    """One number of one step is wrong."""
    model, state = StepCostModel(DEPTH), learnt.export()
    before = model.export()
    state["steps"][3][place] = value
    assert not model.restore(state)
    for name, foreign in (("steps", 7), ("speed", math.nan), ("speed", "fast"), ("count", None)):
        assert not model.restore(learnt.export() | {name: foreign})
    assert model.export() == before
    assert not model.is_known


def test_costs_of_another_depth_are_refused(learnt: StepCostModel) -> None:
    assert not StepCostModel(DEPTH - 1).restore(learnt.export())
    assert not StepCostModel(DEPTH).restore({})


def test_a_model_that_knows_nothing_gives_nothing_to_go_on_from() -> None:
    assert not StepCostModel(DEPTH).restore(StepCostModel(DEPTH).export())


def test_steps_with_pieces_of_prompts_teach_what_drafting_costs() -> None:
    """Continuous arrivals leave few other steps."""
    model, draw = StepCostModel(DEPTH), np.random.default_rng(3)
    width = 0
    for _ in range(600):
        depth, prompt = int(draw.choice([0, 1, 3, DEPTH])), int(draw.choice([16, 64, 128]))
        milliseconds = step_ms(4, 4 * width, depth) + 1.0 + 0.05 * prompt
        model.observe(ObservedStep(4, 4 * width, depth, milliseconds / 1e3, prompt))
        width = depth
    for depth in (0, 1, 3, DEPTH):
        seconds = step_ms(4, 4 * depth, depth) / 1e3
        expected_s, _ = model.observe(ObservedStep(4, 4 * depth, depth, seconds))
        assert expected_s == pytest.approx(seconds, rel=0.15)
