"""The planner comes back to the best depth, whatever it believed before."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from eaglegate.engine.speculation.planner.planner import DepthPlan, DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep, StepCostModel

DEPTH = 3
Slowness = Sequence[float]
"""Factor on the time of a step at every depth."""
EVEN = (1.0,) * (DEPTH + 1)


class Engine:
    """Simulated engine of a few requests, whose steps take ``get_s(batch, verified, depth)``."""

    def __init__(self, batch: int, get_s: Callable[[int, int, int], float], seed: int) -> None:
        self.batch = batch
        self.get_s = get_s
        self.random = random.Random(seed)
        self.planner = DepthPlanner(DEPTH)
        self._remaining: dict[str, int] = {}
        self._names = 0

    def run(
        self, steps: int, acceptance: float, slowness: Slowness = EVEN, forced: bool = False
    ) -> list[DepthPlan]:
        """Run steps of which every draft token is accepted with one probability. If ``forced``, the
        depths take turns, whatever is planned."""
        plans, widths = [], [0] * self.batch
        for step in range(steps):
            names = self._replace_ended()
            plan = self.planner.plan(names, [DEPTH] * self.batch)
            depth = step // 8 % (DEPTH + 1) if forced else plan.depth
            accepted = [self._accept(width, acceptance) for width in widths]
            self.planner.observe(names, widths, accepted)
            seconds = self.get_s(self.batch, sum(widths), depth) * slowness[depth]
            seconds *= self.random.lognormvariate(0, 0.05) * (
                4 if self.random.random() < 0.005 else 1
            )
            self.planner.observe_step(ObservedStep(self.batch, sum(widths), depth, seconds))
            for name, count in zip(names, accepted, strict=True):
                self._remaining[name] -= 1 + count
            widths = [depth] * self.batch if forced else plan.widths
            plans.append(plan)
        return plans

    def get_rate(self, widths: Sequence[int], depth: int, acceptance: float) -> float:
        """True tokens per second of a plan."""
        tokens = sum(acceptance**position for width in widths for position in range(width + 1))
        return tokens / self.get_s(len(widths), sum(widths), depth)

    def get_best_rate(self, acceptance: float) -> float:
        depths = range(DEPTH + 1)
        return max(self.get_rate([depth] * self.batch, depth, acceptance) for depth in depths)

    def _replace_ended(self) -> list[str]:
        for name in [name for name, tokens in self._remaining.items() if tokens <= 0]:
            self.planner.end(name)
            del self._remaining[name]
        while len(self._remaining) < self.batch:
            self._names += 1
            self._remaining[str(self._names)] = self.random.randint(40, 200)
            self.planner.begin(str(self._names), traffic="chat", tenant="team")
        return list(self._remaining)

    def _accept(self, width: int, acceptance: float) -> int:
        return next((n for n in range(width) if self.random.random() >= acceptance), width)


def make_engine(seed: int) -> Engine:
    """An engine after a bad time: some or all depths were slow or fast, other drafts accepted."""
    draw = random.Random(seed)
    depth_ms, token_ms, request_ms = draw.uniform(0.3, 4), draw.choice((0.05, 0.3, 1.5)), 0.3

    def get_s(batch: int, verified: int, depth: int) -> float:
        return (20 + depth_ms * depth + token_ms * verified + request_ms * batch) / 1e3

    engine = Engine(draw.choice((1, 4, 16)), get_s, seed)
    factor = draw.choice((2, 5, 20))
    slowness = draw.choice(
        (
            [1, *[factor] * DEPTH],
            [factor] * (DEPTH + 1),
            [factor, *[1] * DEPTH],
            [math.exp(draw.uniform(-3, 3)) for _ in range(DEPTH + 1)],
        )
    )
    steps, was_accepted = draw.choice((20, 400, 2000)), draw.choice((0.02, 0.5, 0.98))
    engine.run(steps, was_accepted, slowness, forced=draw.random() < 0.5)
    return engine


def compare_with_best(seed: int) -> float:
    """Rate over that of the best depth in the steps from the 1000th on after a bad time."""
    engine = make_engine(seed)
    acceptance = random.Random(seed).choice((0.05, 0.3, 0.6, 0.9))
    engine.run(1000, acceptance)
    plans = engine.run(200, acceptance)
    rates = [engine.get_rate(plan.widths, plan.depth, acceptance) for plan in plans]
    return sum(rates) / len(rates) / engine.get_best_rate(acceptance)


@pytest.mark.parametrize("seed", range(8))
def test_planner_is_back_at_the_best_depth_within_a_thousand_steps(seed: int) -> None:
    assert compare_with_best(seed) > 0.95


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8, 40))
def test_planner_is_back_from_any_bad_time(seed: int) -> None:
    assert compare_with_best(seed) > 0.95


def get_s(batch: int, verified: int, depth: int) -> float:
    return (20 + 2 * depth + verified) / 1e3


@pytest.mark.parametrize("factor", [2, 3, 8, 20])
def test_drafts_that_looked_dear_are_tried_again(factor: int) -> None:
    engine = Engine(1, get_s, seed=1)
    engine.run(400, 0.75, [1, *[factor] * DEPTH], forced=True)
    plans = engine.run(1200, 0.75)
    assert sum(plan.depth == DEPTH for plan in plans[1000:]) > 180


def test_no_depth_goes_untried_for_long_while_drafts_do_not_pay() -> None:
    engine = Engine(1, lambda batch, verified, depth: (20 + 300 * depth) / 1e3, seed=1)
    engine.run(400, 0.1, forced=True)
    plans = engine.run(2000, 0.1)
    probes = [n for n, plan in enumerate(plans) if plan.depth]
    assert max(b - a for a, b in zip([0, *probes], [*probes, 2000], strict=True)) < 300


@pytest.mark.parametrize("seed", range(4))
def test_noise_does_not_make_the_depth_in_use_look_cheaper(seed: int) -> None:
    """Two contents of steps take turns at depth 1 for long, after depth 0 was timed."""
    model, draw = StepCostModel(DEPTH), random.Random(seed)
    for step in range(3000):
        depth = int(step >= 100)
        verified = draw.choice((4, 7)) * depth
        seconds = get_s(8, verified, depth) * draw.lognormvariate(0, 0.05)
        model.observe(ObservedStep(8, verified, depth, seconds))
    none, shallow, *_ = model.mixed_seconds(8, np.array([0.0, 7, 7, 7]))
    assert shallow / none == pytest.approx(get_s(8, 7, 1) / get_s(8, 0, 0), rel=0.1)


@pytest.mark.parametrize("slow_steps", [1, 10])
def test_a_slow_start_does_not_make_drafts_look_dear(slow_steps: int) -> None:
    """The first steps take a hundred times as long: a page fault, a compilation, a load."""
    model = StepCostModel(DEPTH)
    for step in range(400):
        depth = DEPTH - step // 8 % (DEPTH + 1) if step < 100 else 0
        factor = 100 if step < slow_steps else 1
        model.observe(ObservedStep(1, depth, depth, factor * get_s(1, depth, depth)))
    table = model.tabulate()
    assert table is not None
    (seconds,) = table["step_ms"]
    assert seconds == pytest.approx([20, 23, 26, 29], rel=0.1)
