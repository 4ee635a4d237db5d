"""The planner's probes beside the best depth, and their budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.probes import (
    COLD_STEPS,
    COLD_TRIALS,
    LONGEST_WAIT,
    PROBE_SHARE,
    RETIMED,
    SAVED_STEPS,
    Optimum,
    Probes,
)
from eaglegate.engine.types import DepthReason

DEPTH = 4
RATES = np.full(DEPTH + 1, 200.0)
TIMED_ALL = np.full(DEPTH + 1, 100.0)
KNOWN = np.full((1, DEPTH), 100.0)
OLD = np.array([100])


def make_optimum(
    depth: int = 1,
    extra_s: float = 0.002,
    survives: float = 0.0,
    token_s: float = 0.0,
    requests: int = 1,
) -> Optimum:
    """A step of 10 ms; one deeper costs ``extra_s`` more, a token ``token_s``, and a draft there
    ``survives``."""

    def get_seconds(widths: np.ndarray, step_depth: int) -> float:
        return 0.01 + extra_s * (step_depth - depth) + token_s * int(widths.sum() - depth)

    survival = np.full((requests, DEPTH), survives)
    widths, bounds = np.full(requests, depth), np.full(requests, DEPTH)
    return Optimum(depth, widths, bounds, 0, survival, RATES, get_seconds, token_s, depth)


def choose(probes: Probes, best: Optimum, trials: np.ndarray = KNOWN, age: np.ndarray = OLD):
    probes.count_step()
    return probes.choose(best, TIMED_ALL, trials, age)


def test_probes_take_no_more_than_their_share_of_the_time() -> None:
    """The share holds however often probes might be made: here every change starts them anew."""
    probes, best, lost_s = Probes(), make_optimum(extra_s=0.002), 0.0
    for _ in range(4000):
        probes.restart()
        if choose(probes, best) is not None:
            lost_s += 0.002
        probes.save(0.01)
    budget_s = PROBE_SHARE * 4000 * 0.01
    assert 0.9 * budget_s < lost_s <= budget_s


def test_unknown_requests_are_tried_within_the_same_share() -> None:
    probes, best, made = Probes(), make_optimum(extra_s=0.002), 0
    for _ in range(1000):
        probe = choose(probes, best, np.zeros((1, DEPTH)), np.array([0]))
        assert probe is None or probe.is_cold
        made += probe is not None
        probes.save(0.01)
    loan_s = SAVED_STEPS * 0.01
    assert 0 < made * 0.002 <= PROBE_SHARE * 1000 * 0.01 + loan_s


def test_a_probe_that_is_worth_its_time_costs_nothing() -> None:
    """A probe whose tokens are worth more than its seconds needs no budget."""
    assert choose(Probes(), make_optimum(extra_s=0.002, survives=0.9)) is not None
    assert choose(Probes(), make_optimum(extra_s=0.002, survives=0.1)) is None


def test_a_probe_whose_drafts_are_accepted_unexpectedly_is_paid_back() -> None:
    probes, best = make_rich(), make_optimum(extra_s=0.004)
    assert choose(probes, best) is not None
    assert choose(probes, best) is None, "the budget is spent"
    probes.conclude([])
    probes.conclude([True, False, True])
    assert choose(probes, best) is not None
    probes.conclude([True, False, False])
    assert not probes.is_doubtful
    assert choose(probes, best) is None


def test_a_probe_of_times_is_paid_back_to_its_own_budget() -> None:
    probes, best = make_rich(), make_optimum(extra_s=0.002, survives=0.01)
    deeper_untimed = np.where(np.arange(DEPTH + 1) > best.depth, 0.0, 100.0)
    probes.restart()
    assert choose(probes, best) is not None
    probes.restart()
    assert choose(probes, best) is not None
    probes.restart()
    assert choose(probes, best) is None, "the budget of acceptance is spent"
    for _ in range(LONGEST_WAIT):
        probes.count_step()
    assert probes.choose(best, deeper_untimed, KNOWN, OLD) is not None
    probes.conclude([True])
    assert choose(probes, best) is None


def test_a_loan_pays_for_a_probe_of_a_burst_and_not_of_one_newcomer() -> None:
    age, trials = np.zeros(16, dtype=int), np.zeros((16, DEPTH))
    best = make_optimum(extra_s=0.002, requests=16)
    probes = Probes()
    probes.save(0.01)
    age[1:] = 100
    assert choose(probes, best, trials, age) is None
    burst = choose(probes, best, trials, 0 * age)
    assert burst is not None
    assert burst.is_cold


def test_a_loan_pays_for_the_only_request_while_nothing_is_drafted() -> None:
    age, trials = np.array([0]), np.zeros((1, DEPTH))
    probes = Probes()
    probes.save(0.01)
    assert choose(probes, make_optimum(extra_s=0.002), trials, age) is None
    assert choose(probes, make_optimum(depth=0, extra_s=0.002), trials, age) is not None


def test_the_budget_saves_up_no_more_than_part_of_a_step() -> None:
    """The bound keeps a long time without probes from being followed by many."""
    probes = Probes()
    for _ in range(100_000):
        probes.save(0.01)
    saved_s = SAVED_STEPS * 0.01
    assert choose(probes, make_optimum(extra_s=1.01 * saved_s)) is None
    assert choose(probes, make_optimum(extra_s=0.99 * saved_s)) is not None
    assert choose(probes, make_optimum(extra_s=0.02 * saved_s)) is None, "it was spent"


def test_each_probe_that_changes_nothing_is_waited_for_twice_as_long() -> None:
    probes, best, gaps, since = Probes(), make_optimum(survives=0.9), [], 0
    for _ in range(2000):
        since += 1
        if choose(probes, best) is not None:
            gaps.append(since)
            since = 0
    assert gaps[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert set(gaps[8:]) == {LONGEST_WAIT}
    probes.restart()
    assert choose(probes, best) is not None


def test_nothing_lies_beside_the_greatest_depth_or_a_bound() -> None:
    assert choose(Probes(), make_optimum(depth=DEPTH, survives=0.9)) is None
    best = make_optimum(survives=0.9)
    assert choose(Probes(), replace(best, bounds=np.array([1]))) is None


def test_a_probe_is_one_deeper_for_those_that_verify_all() -> None:
    two = replace(make_optimum(survives=0.9, requests=2), widths=np.array([1, 0]))
    probes = Probes()
    probes.count_step()
    probe = probes.choose(two, TIMED_ALL, np.full((2, DEPTH), 100.0), np.array([100, 100]))
    assert probe is not None
    assert (probe.depth, probe.widths.tolist(), probe.is_cold) == (2, [2, 0], False)


def test_a_depth_whose_time_is_unknown_is_tried() -> None:
    """Shallower than the best, for its time alone, where the budget pays for the tokens lost."""
    probes, best = Probes(), make_optimum(depth=2, extra_s=0.004, survives=0.01)
    steps_at = np.array([100.0, 0.0, 100.0, 100.0, 100.0])
    made = [probes.choose(best, steps_at, KNOWN, OLD)]
    for _ in range(5):
        probes.count_step()
        made.append(probes.choose(best, steps_at, KNOWN, OLD))
    first = next(probe for probe in made if probe is not None)
    assert (first.depth, first.widths.tolist()) == (1, [1])


def make_rich() -> Probes:
    """Probes whose budget pays for half a step of 10 ms."""
    probes = Probes()
    for _ in range(1000):
        probes.save(0.01)
    return probes


def test_a_planner_asks_when_a_probe_is_due_and_paid() -> None:
    probes, free, dear = Probes(), make_optimum(survives=0.9), make_optimum(extra_s=0.001)
    assert probes.is_due
    assert choose(probes, free) is not None
    assert not probes.is_due, "it waits for two steps"
    assert choose(probes, free) is None
    assert probes.is_due, "as soon as the time is over"
    assert choose(probes, free) is not None
    probes.restart()
    assert choose(probes, dear) is None
    assert not probes.is_due, "the budget does not pay"
    for _ in range(20):
        probes.save(0.01)
    assert probes.is_due


@pytest.mark.parametrize(
    ("trials", "age", "is_cold"),
    [
        (COLD_TRIALS - 0.1, COLD_STEPS - 1, True),
        (COLD_TRIALS, COLD_STEPS - 1, False),
        (COLD_TRIALS - 0.1, COLD_STEPS, False),
    ],
)
def test_a_request_is_unknown_while_it_is_young_and_hardly_tried(
    trials: float, age: int, is_cold: bool
) -> None:
    probe = choose(make_rich(), make_optimum(), np.full((1, DEPTH), trials), np.array([age]))
    assert probe is not None
    assert probe.is_cold is is_cold


def test_no_probe_is_made_for_nobody() -> None:
    best = make_optimum()
    assert choose(make_rich(), replace(best, bounds=np.array([1]))) is None
    assert choose(make_rich(), best) is not None


def test_a_probe_pays_for_the_tokens_that_it_verifies() -> None:
    """Deeper drafts take no time here, and each token that is verified takes 4 ms."""
    one, two = (make_optimum(extra_s=0.0, token_s=0.004, requests=n) for n in (1, 2))
    known, old = np.full((2, DEPTH), 100.0), np.array([100, 100])
    assert choose(make_rich(), one, known[:1], old[:1]) is not None
    assert choose(make_rich(), two, known, old) is None, "8 ms are more than the 5 it has"


def test_a_depth_is_timed_until_its_time_is_known() -> None:
    best = make_optimum(depth=2)

    def tries(steps: int) -> bool:
        probes, steps_at = make_rich(), np.full(DEPTH + 1, 100.0)
        steps_at[1] = steps
        made = []
        for _ in range(20):
            probes.save(0.01)
            probes.count_step()
            made.append(probes.choose(best, steps_at, KNOWN, OLD))
        return any(probe is not None and probe.depth == 1 for probe in made)

    assert tries(RETIMED - 1)
    assert not tries(RETIMED)


def make_planner(acceptance: float) -> DepthPlanner:
    """One request whose next drafts are each accepted with this probability."""
    planner = DepthPlanner(DEPTH)
    planner.cost._unit = 0.01
    planner.begin("a", "", "")
    set_acceptance(planner, acceptance)
    return planner


def set_acceptance(planner: DepthPlanner, acceptance: float) -> None:
    known = np.full((1, DEPTH), acceptance)
    planner.survival.conditional = lambda _: known  # type: ignore[method-assign]
    planner.survival.trials = lambda _: KNOWN  # type: ignore[method-assign]
    planner.survival.age = lambda _: OLD  # type: ignore[method-assign]


def plan_depth(planner: DepthPlanner) -> int:
    """The depth of a plan that is not a probe."""
    while True:
        planner._fresh = True
        plan = planner.plan(["a"], [DEPTH])
        if plan.reason not in (DepthReason.PROBE, DepthReason.COLD):
            return plan.depth


def rate(acceptance: float, depth: int) -> float:
    tokens = 1 + sum(acceptance**j for j in range(1, depth + 1))
    seconds = make_planner(acceptance).cost.seconds(1, np.arange(DEPTH + 1.0))
    return tokens / float(seconds[depth])


def find_acceptance(gain: float) -> float:
    """The acceptance at which depth 1 is better than none by ``gain``."""
    low, high = 0.0, 0.5
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if rate(middle, 1) > (1 + gain) * rate(middle, 0) else (middle, high)
        )
    return high


@pytest.mark.parametrize(("gain", "moves"), [(0.003, False), (0.008, False), (0.015, True)])
def test_a_depth_changes_for_a_gain_of_one_percent_and_not_for_less(
    gain: float, moves: bool
) -> None:
    """Noise must not move it to and fro: a change costs drafts that are made and not verified."""
    upwards = make_planner(find_acceptance(-0.05))
    assert plan_depth(upwards) == 0
    set_acceptance(upwards, find_acceptance(gain))
    assert plan_depth(upwards) == moves
    downwards = make_planner(find_acceptance(0.05))
    assert plan_depth(downwards) == 1
    set_acceptance(downwards, find_acceptance(-gain))
    assert plan_depth(downwards) == 1 - moves
