"""Handing over a model of step costs to another one."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from eaglegate.engine.speculation.planner import DepthPlanner
from eaglegate.engine.speculation.step_cost import ObservedStep, StepCostModel
from eaglegate.lab.benchmarks.regret_sim import profiled, step_ms

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
    assert believe(first) == believe(second) == believe(learnt)
    assert first.steps_at(4).tolist() == learnt.steps_at(4).tolist()
    for model in (first, learnt):
        for _ in range(20):
            model.observe(ObservedStep(4, 12, 3, 2e-3 * step_ms(4, 12, 3)))
    assert believe(first) == believe(learnt) != believe(second)
    assert second.export() == exported


def test_a_known_speed_is_found_again_where_the_machine_is_slower(learnt: StepCostModel) -> None:
    model = StepCostModel(DEPTH)
    assert model.restore(learnt.export())
    for _ in range(40):
        model.observe(ObservedStep(4, 12, 3, 3e-3 * step_ms(4, 12, 3)))
    assert model.step_seconds(4, 12, 3) == pytest.approx(3e-3 * step_ms(4, 12, 3), rel=0.1)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("context_ms", [0.5, 2.0, 6.0, 20.0])
def test_long_contexts_are_learnt_after_short_prompts_were_timed(
    batch: int, context_ms: float
) -> None:
    """The model has no term for the time that a step takes to read its requests' contexts."""
    model = profiled(DepthPlanner(DEPTH)).cost
    noise, widths = np.random.default_rng(3), np.arange(DEPTH + 1)
    true_ms = [step_ms(batch, batch * depth, depth) + context_ms * batch for depth in widths]
    tokens = np.cumsum(0.8**widths)
    rates, regrets = tokens / true_ms, []
    for _ in range(300):
        depth = int(np.argmax(tokens / model.seconds(batch, widths * float(batch))))
        regrets.append(1 - rates[depth] / rates.max())
        seconds = true_ms[depth] / 1e3 * float(noise.lognormal(0, 0.02))
        model.observe(ObservedStep(batch, batch * depth, depth, seconds))
    assert np.mean(regrets[50:]) < 0.05


@pytest.mark.parametrize(
    "change",
    [
        {"unit": 1.0},
        {"_unit": None},
        {"_speed": math.nan},
        {"_speed": "fast"},
        {"_weights": [1.0]},
        {"_cells": [0.0] * 12},
        {"_covariance": 0.0},
    ],
)
def test_foreign_state_is_refused_and_changes_nothing(
    learnt: StepCostModel, change: dict[str, Any]
) -> None:
    model = StepCostModel(DEPTH)
    before = model.export()
    assert not model.restore(learnt.export() | change)
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
        expected = model.step_seconds(4, 4 * depth, depth)
        assert expected == pytest.approx(step_ms(4, 4 * depth, depth) / 1e3, rel=0.15)
