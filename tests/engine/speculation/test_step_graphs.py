"""Costs that go by steps: padded batches, and steps without a FULL graph."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from eaglegate.engine.speculation.planner import step_graphs
from eaglegate.engine.speculation.planner.planner import GAIN, DepthPlanner
from eaglegate.engine.speculation.planner.probes import Optimum
from eaglegate.engine.speculation.planner.step_cost import ObservedStep, StepCostModel
from eaglegate.engine.speculation.planner.step_graphs import GraphMode, StepGraphs
from eaglegate.engine.speculation.planner.uniform import prefer_uniform
from tests.engine.speculation.serving_sim import DEPTH, GPUS, profiled

GRAPHS = StepGraphs((0, 1, 3, 7), (*range(1, 17), *range(24, 257, 8)))
LARGE = GPUS[-1]


def test_the_examples_in_the_module() -> None:
    assert doctest.testmod(step_graphs).failed == 0


def plan(bounds: list[int], kinds: list[float], floors: list[int] | None = None) -> list[int]:
    """The widths for requests that accept so much of every position."""
    planner = profiled(DepthPlanner(DEPTH, graphs=LARGE.graphs), LARGE)
    names = [str(at) for at in range(len(bounds))]
    for name, kind in zip(names, kinds, strict=True):
        planner.begin(name, f"kind-{kind}", "")
    for _ in range(60):
        planner.plan(names, [DEPTH] * len(names))
        accepted = [DEPTH if kind > 0.5 else 0 for kind in kinds]
        planner.observe(names, [DEPTH] * len(names), accepted)
    return planner.plan(names, bounds, floors).widths


def test_requests_near_their_end_verify_as_many_as_the_others() -> None:
    assert plan([7, 7, 2, 7], [0.9] * 4) == [7] * 4


def test_requests_that_asked_for_a_depth_keep_it() -> None:
    assert plan([7, 2, 7, 7], [0.9] * 4, [0, 2, 0, 0])[1] == 2


def test_the_price_of_a_token_is_that_of_the_plan_with_equal_widths() -> None:
    planner = profiled(DepthPlanner(DEPTH, graphs=LARGE.graphs), LARGE)
    names = ["a", "b", "c", "d"]
    for name in names:
        planner.begin(name, "kind", "")
    for _ in range(30):
        planner.observe(names, [DEPTH] * 4, [7, 7, 3, 0])
        step_plan = planner.plan(names, [DEPTH] * 4)
    assert step_plan.widths == [step_plan.depth] * 4
    assert planner.get_token_price(4) == pytest.approx(step_plan.token_price)


def test_the_extra_time_without_a_graph_is_learnt() -> None:
    model = profiled(DepthPlanner(DEPTH, graphs=LARGE.graphs), LARGE).cost
    for _ in range(40):
        for widths in ([3] * 8, [3, 0] * 4, [7] * 8):
            mode = GRAPHS.find_mode(widths)
            seconds = LARGE.run_ms(widths, max(widths), mode) / 1e3
            model.observe(ObservedStep(8, sum(widths), max(widths), seconds, mode=mode))
    found = 1e3 * model.get_extra_s(8, GraphMode.PIECEWISE)
    assert found == pytest.approx(LARGE.piecewise_ms, rel=0.25)
    assert model.get_extra_s(8, GraphMode.FULL) == 0
    equal = model.seconds(8, 8.0 * np.arange(DEPTH + 1))
    assert equal[4] > equal[7], "no FULL graph at depth 4"


def test_a_padded_step_costs_what_it_is_padded_to() -> None:
    model = StepCostModel(DEPTH, base_s=0.01, graphs=GRAPHS)
    one, all_, more = (model.seconds(8, np.full(DEPTH + 1, n))[1] for n in (9.0, 16.0, 17.0))
    assert one == all_ < more


def test_without_graphs_nothing_changes() -> None:
    survival = np.full((2, DEPTH), 0.5)
    best = Optimum(
        2,
        np.array([2, 1]),
        np.array([7, 7]),
        0,
        survival,
        np.ones(DEPTH + 1),
        lambda widths, depth: 1.0,
        0.001,
        2,
    )
    assert prefer_uniform(best, [0, 0], StepCostModel(DEPTH), 2, GAIN) is best
