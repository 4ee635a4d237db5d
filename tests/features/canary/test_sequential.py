"""The sequential test of a canary: its intervals and its rules. The simulations are apart."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.sequential import (
    STRONGEST,
    BlockDifference,
    CanaryFindings,
    CanaryRules,
    CanaryTest,
    Guardrail,
    Interval,
    Scale,
    SlotPair,
    find_interval,
    measure_dependence,
)
from tests.features.canary.simulated_sessions import Values

RULES = CanaryRules(max_blocks=40)


def test_the_mix_of_workloads_does_not_affect_acceptance() -> None:
    """Tools accept twice as much as chat, and one arm happened to get more of them."""
    test = CanaryTest(CanaryRules())
    for block in range(6):
        made: list[Values] = [defaultdict(lambda: defaultdict(list)) for _ in range(2)]
        for arm, tools in zip(made, (2, 8), strict=True):
            for session in range(10):
                name, length = ("tools", 4.0) if session < tools else ("chat", 2.0)
                for metric in ("acceptance", f"acceptance:{name}"):
                    arm[metric][f"{block}-{session}"].append(length)
        test.add(SlotPair(*made))
    evidence = {one.metric: one.interval.mean for one in test.judge().evidence}
    assert evidence["acceptance"] == pytest.approx(0.0)


def test_a_loss_within_the_margin_is_no_reason_to_roll_back() -> None:
    test = CanaryTest(CanaryRules(slice_margin=0.03))
    draws = random.Random(1)
    for block in range(60):
        arms: list[Values] = [defaultdict(lambda: defaultdict(list)) for _ in range(2)]
        for arm, change in zip(arms, ({"tools": 1.3, "chat": 0.985}, {}), strict=True):
            for session in range(10):
                name = "tools" if session < 5 else "chat"
                length = 2.0 * change.get(name, 1.0) * draws.lognormvariate(0, 0.01)
                for metric in ("acceptance", f"acceptance:{name}"):
                    arm[metric][f"{block}-{session}"].append(length)
        test.add(SlotPair(arms[1], arms[0]))
    found = test.judge()
    chat = next(one for one in found.evidence if one.metric == "acceptance:chat")
    assert chat.interval.high < 0, "it is shown to be a loss"
    assert found.verdict is CanaryVerdict.PROMOTE, found.reason


@pytest.mark.thorough
def test_the_interval_holds_at_all_times_at_once() -> None:
    assert count_misses(lambda draws: np.ones(100)) <= 0.1 * 400


@pytest.mark.thorough
def test_the_interval_holds_where_blocks_differ_in_size() -> None:
    """Sizes vary tenfold by day and night, and at random."""
    daily = 10 ** np.sin(np.arange(100) / 8)
    assert count_misses(lambda draws: daily * draws.lognormal(0, 0.5, 100)) <= 0.1 * 400


def count_misses(weigh: Callable[[np.random.Generator], np.ndarray]) -> int:
    """The number of 400 runs of 100 blocks whose interval at 0.1 ever missed the true mean."""
    draws, missed = np.random.default_rng(5), 0
    for _ in range(400):
        weights = weigh(draws)
        values = 0.3 + draws.standard_normal(100) / np.sqrt(weights)
        found = make_blocks(values.tolist(), weights.tolist())
        intervals = (find_interval(found[:count], 0.1) for count in range(2, 101))
        missed += any(not one.low <= 0.3 <= one.high for one in intervals)
    return missed


def make_blocks(
    values: Sequence[float], weights: Sequence[float] | None = None
) -> list[BlockDifference]:
    return [*map(BlockDifference, values, weights or [1.0] * len(values))]


def test_a_block_of_few_sessions_says_little() -> None:
    """Failed tool calls, 14 in a hundred: most slots have fifty, some have two."""
    draws = np.random.default_rng(7)
    sizes = [2 if draws.random() < 0.3 else 50 for _ in range(60)]
    shares = [np.subtract(*draws.binomial(size, 0.14, 2)) / size for size in sizes]
    weighed = find_interval(make_blocks(shares, [size / 2 for size in sizes]), 0.1)
    equal = find_interval(make_blocks(shares), 0.1)
    assert weighed.high - weighed.low < 0.6 * (equal.high - equal.low)
    assert weighed.low > -0.05


def test_the_interval_shrinks_as_the_root_of_the_blocks() -> None:
    values = np.random.default_rng(1).standard_normal(1600).tolist()
    found = make_blocks(values)
    widths = [one.high - one.low for one in [find_interval(found[:n], 0.05) for n in (100, 1600)]]
    assert 3 < widths[0] / widths[1] < 4.5


def make_pair(**losses: float) -> SlotPair:
    """One session an arm; the candidate is worse by these logarithms."""
    control = {name: {"a": [1.0]} for name in losses}
    return SlotPair(control, {name: {"b": [math.exp(-loss)]} for name, loss in losses.items()})


LOSSES = (0.2 + 0.25 * np.random.default_rng(2).standard_normal(60)).tolist()
LENIENT = Guardrail("acceptance", True, 0.9, by_slice=True)


def count_to_rollback(test: CanaryTest, *names: str) -> int:
    """Blocks in which all of these metrics are worse."""
    for count, loss in enumerate(LOSSES, 1):
        test.add(make_pair(**dict.fromkeys(names, loss)))
        found = test.judge()
        if found.verdict is CanaryVerdict.ROLL_BACK:
            return count
    raise AssertionError("it is never rolled back")


def count_to_certainty(alpha: float) -> int:
    blocks = make_blocks([-loss for loss in LOSSES])
    return next(n for n in range(2, 60) if find_interval(blocks[:n], 2 * alpha, 0.005).high < 0)


def test_the_metrics_of_the_rules_share_half_of_alpha() -> None:
    """Any metric may err, and a single one is enough for a rollback."""
    few = CanaryRules(guardrails=(), slice_margin=0.9)
    many = CanaryRules(guardrails=tuple(Guardrail(f"g{n}", True, 0.0) for n in range(19)))
    assert count_to_rollback(CanaryTest(few), "acceptance") == count_to_certainty(0.05 / 2)
    assert count_to_rollback(CanaryTest(many), "acceptance") == count_to_certainty(0.05 / 40)
    assert count_to_rollback(CanaryTest(many), "g7") == count_to_certainty(0.05 / 40)
    assert count_to_certainty(0.05) < count_to_certainty(0.05 / 2) < count_to_certainty(0.05 / 40)


@pytest.mark.parametrize("place", [1, 2, 6])
def test_a_slice_that_appears_as_the_nth_takes_one_in_n_times_n_plus_1_of_the_other_half(
    place: int,
) -> None:
    """The shares of any number of slices then add up to less than alpha."""
    test = CanaryTest(CanaryRules(LENIENT, guardrails=(), slice_margin=0.0))
    for at in range(1, place):
        test.add(make_pair(**{f"acceptance:z{at}": 0.0}))
    count = count_to_rollback(test, "acceptance:a")
    assert count == count_to_certainty(0.05 / 2 / (place * (place + 1)))


def test_arms_that_serve_at_the_same_time_need_more_blocks() -> None:
    rules = CanaryRules(guardrails=())
    in_turn = count_to_rollback(CanaryTest(rules), "acceptance")
    assert in_turn < count_to_rollback(CanaryTest(rules, concurrent=True), "acceptance")


def drift(draws: np.random.Generator, blocks: int, correlation: float) -> np.ndarray:
    """An autoregression of first order, of variance 1."""
    noise = draws.standard_normal(blocks)
    for at in range(1, blocks):
        noise[at] = correlation * noise[at - 1] + math.sqrt(1 - correlation**2) * noise[at]
    return noise


@pytest.mark.thorough
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7])
def test_arms_that_drift_apart_and_back_decide_nothing(correlation: float) -> None:
    """No more than 11 % of 300 runs of 60 blocks have an interval at 0.1 that ever misses the true
    mean."""
    draws, missed, naive = np.random.default_rng(3), 0, 0
    for _ in range(300):
        found = make_blocks(drift(draws, 60, correlation).tolist())
        looks = [found[:count] for count in range(6, 61)]
        missed += any(abs(i.mean) > i.high - i.mean for i in map(find_concurrent, looks))
        naive += any(abs(i.mean) > i.high - i.mean for i in map(find_in_turn, looks))
    assert missed <= 0.11 * 300
    assert correlation < 0.5 or naive > 0.3 * 300, "which is what a drift does otherwise"


def find_concurrent(found: Sequence[BlockDifference]) -> Interval:
    return find_interval(found, 0.1, dependent=True)


def find_in_turn(found: Sequence[BlockDifference]) -> Interval:
    return find_interval(found, 0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("correlation", [0.3, 0.5, 0.7])
def test_a_drift_through_slots_in_random_order_decides_nothing(correlation: float) -> None:
    draws, missed = np.random.default_rng(4), 0
    for _ in range(300):
        slots = drift(draws, 120, correlation).reshape(60, 2)
        order = draws.integers(0, 2, 60)
        differences = np.where(order, slots[:, 0] - slots[:, 1], slots[:, 1] - slots[:, 0])
        found = make_blocks(differences.tolist())
        intervals = (find_in_turn(found[:count]) for count in range(6, 61))
        missed += any(not one.low <= 0 <= one.high for one in intervals)
    assert missed <= 0.1 * 300


def test_equal_differences_are_independent_of_each_other() -> None:
    assert find_interval(make_blocks([1.0] * 30), 0.1, dependent=True).low == 1.0


def judge(blocks: Sequence[SlotPair]) -> CanaryFindings:
    test = CanaryTest(RULES)
    for block in blocks:
        test.add(block)
    return test.judge()


@pytest.mark.parametrize("values", [[], [0.25], [0.25, 0.25]])
def test_few_blocks_are_shown_without_an_interval(values: list[float]) -> None:
    mean = 0.25 if values else 0.0
    expected = Interval(mean, -math.inf, math.inf, len(values))
    assert find_interval(make_blocks(values), 0.05) == expected


def test_equal_blocks_do_not_decide_at_once() -> None:
    """No variance would mean no doubt without a floor."""
    interval = find_interval(make_blocks([0.001] * 6), 0.05, floor=0.01)
    assert interval.low < 0 < interval.high


def test_one_outlier_is_clipped() -> None:
    guardrail = Guardrail("tpot", higher_is_better=False, margin=0.05)
    block = SlotPair({"tpot": {"a": [1.0]}}, {"tpot": {"a": [1000.0]}})
    assert block.compare(guardrail) == BlockDifference(-1.0, 0.5)


def test_a_session_counts_once_however_many_requests_it_has() -> None:
    guardrail = Guardrail("failed", False, 0.02, Scale.DIFFERENCE)
    block = SlotPair(
        {"failed": {"a": [0.0], "b": [0.0]}}, {"failed": {"a": [1.0] * 100, "b": [0.0]}}
    )
    assert block.compare(guardrail) == BlockDifference(-0.5, 1.0)


def test_a_metric_without_values_does_not_stop_a_promotion() -> None:
    draws = random.Random(2)

    def make(gain: float, at: int) -> Values:
        sessions = {f"{at}-{n}": [gain * draws.lognormvariate(0, 0.1)] for n in range(6)}
        return {"acceptance": sessions, "tpot": {name: [1.0] for name in sessions}}

    found = judge([SlotPair(make(1.0, at), make(1.5, at)) for at in range(10)])
    assert found.verdict is CanaryVerdict.PROMOTE
    assert found.evidence[0].metric == "acceptance"


def test_the_least_data_is_waited_for() -> None:
    block = SlotPair({"acceptance": {"a": [1.0]}}, {"acceptance": {"a": [2.0]}})
    found = judge([block] * 5)
    assert (found.verdict, found.ended) == (CanaryVerdict.UNDECIDED, False)
    late = judge([block] * 40)
    assert (late.verdict, late.ended) == (CanaryVerdict.UNDECIDED, True)


def find_by_the_formula(
    values: Sequence[float], alpha: float, weights: Sequence[float]
) -> Interval:
    """Perez-Ortiz et al.: the t at which the e-process with a normal mixture reaches 1 / alpha."""
    count, total = len(values), sum(weights) / weights[0]
    mean = np.average(values, weights=weights)
    squares = float(np.sum(np.array(weights) / weights[0] * (np.array(values) - mean) ** 2))

    def evidence(t: float) -> float:
        ratio = (1 + t**2 / ((count - 1) * (1 + total))) / (1 + t**2 / (count - 1))
        return (1 + total) ** -0.5 * ratio ** (-count / 2)

    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if evidence(middle) < 1 / alpha else (low, middle)
    reach = low * math.sqrt(squares / (count - 1) / total)
    return Interval(float(mean), float(mean) - reach, float(mean) + reach, count)


@pytest.mark.parametrize("weights", [[1.0] * 8, [2.0, 1.0, 4.0, 3.0, 2.0, 2.0, 5.0, 1.0]])
def test_the_interval_is_that_of_the_formula(weights: list[float]) -> None:
    values = [0.3, 0.1, 0.4, 0.2, 0.5, 0.25, 0.35, 0.15]
    found = find_interval(make_blocks(values, weights), 0.1)
    expected = find_by_the_formula(values, 0.1, weights)
    for name in ("mean", "low", "high", "blocks"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6)


def test_a_floor_is_the_deviation_of_a_block_of_mean_weight() -> None:
    equal, heavy = ([0.0] * 20, [3.0] * 20), ([0.0] * 20, [1.0] + [7.0] * 19)
    reaches = [find_interval(make_blocks(*one), 0.1, floor=0.01).high for one in (equal, heavy)]
    noise = find_interval(make_blocks([0.01, -0.01] * 10), 0.1).high
    assert reaches[0] == pytest.approx(noise * math.sqrt(19 / 20), rel=1e-6)
    assert reaches[0] / reaches[1] == pytest.approx(1.0, rel=0.15)


RAISED = 2 / 20 + (1 + 4 * 2 / 20) / 8 + 8**-0.5
"""The correlation of eight residuals whose neighbours' products add up to a tenth of squares."""


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ([1.0, -1.0] * 8, 1.0),
        ([1.0] * 16, STRONGEST),
        (
            [2.0, 1.0, -2.0, -1.0, 2.0, 1.0, -2.0, -1.0],
            (1 + RAISED) / (1 - RAISED),
        ),
        ([0.0, 0.0], 1.0),
        ([], 1.0),
    ],
)
def test_neighbours_that_are_alike_count_for_fewer(rest: list[float], expected: float) -> None:
    wanted = (1 + STRONGEST) / (1 - STRONGEST) if expected is STRONGEST else expected
    assert measure_dependence(rest) == pytest.approx(wanted, rel=1e-6)


def test_default_rules_are_those_of_the_documentation() -> None:
    """The rules are those in docs/canary.md."""
    rules, tpot = CanaryRules(), CanaryRules.for_tpot(max_blocks=7)
    assert (rules.alpha, rules.min_blocks, rules.min_sessions, rules.max_blocks) == (
        0.05,
        6,
        20,
        200,
    )
    assert (rules.slice_margin, tpot.slice_margin, tpot.max_blocks) == (0.03, 0.05, 7)
    margins = {one.metric: round(one.least, 9) for one in rules.guardrails}
    assert margins.pop("tpot") == round(math.log(0.95), 9)
    assert margins == {"fallback": -0.05, "failed": -0.02, "tool_failed": -0.05}
    assert [one.metric for one in tpot.guardrails] == ["failed", "tool_failed"]
    for one in (tpot.primary, *rules.guardrails):
        assert one.orient(0.1) == -0.1, "lower is better"
        assert one.floor <= 0.01
    assert rules.primary.orient(0.1) == 0.1
    assert rules.primary.by_slice and tpot.primary.by_slice
    assert rules.primary.least == tpot.primary.least == 0.0
    assert not any(one.by_slice for one in rules.guardrails)


def make_noisy_pair(draws: random.Random, sessions: int, at: int, **gains: float) -> SlotPair:
    arms: list[Values] = [defaultdict(lambda: defaultdict(list)) for _ in range(2)]
    for arm, by_metric in zip(arms, ({}, gains), strict=True):
        for metric in gains:
            for session in range(sessions):
                gain = by_metric.get(metric, 1.0) * draws.lognormvariate(0, 0.02)
                arm[metric][f"{at}-{session}"].append(gain)
    return SlotPair(*arms)


def count_to_promotion(rules: CanaryRules, sessions: int = 4, **gains: float) -> int | None:
    test, draws = CanaryTest(rules), random.Random(4)
    for at in range(30):
        test.add(make_noisy_pair(draws, sessions, at, **gains))
        found = test.judge()
        if found.ended:
            return found.blocks if found.verdict is CanaryVerdict.PROMOTE else None
    return None


def test_a_promotion_waits_for_the_least_blocks_and_sessions_and_no_longer() -> None:
    assert count_to_promotion(CanaryRules(), acceptance=1.5) == 6
    assert count_to_promotion(CanaryRules(min_blocks=8), acceptance=1.5) == 8
    assert count_to_promotion(CanaryRules(min_sessions=36), acceptance=1.5) == 9


def test_a_guardrail_that_may_be_worse_holds_a_promotion_back() -> None:
    assert count_to_promotion(CanaryRules(max_blocks=30), acceptance=1.5, tpot=1.0) is not None
    assert count_to_promotion(CanaryRules(max_blocks=30), acceptance=1.5, tpot=1.06) is None
    assert count_to_promotion(CanaryRules(max_blocks=30), acceptance=1.0, tpot=1.0) is None


def test_a_canary_that_is_over_says_so_and_one_that_is_decided_does_not() -> None:
    draws = random.Random(4)
    over, won = (CanaryTest(CanaryRules(max_blocks=8)) for _ in range(2))
    for at in range(8):
        over.add(make_noisy_pair(draws, 4, at, acceptance=1.0))
        won.add(make_noisy_pair(draws, 4, at, acceptance=1.5))
        if at < 7:
            assert "duration" not in over.judge().reason and not over.judge().ended
    assert over.judge().reason.startswith(
        "the maximum duration has passed: acceptance is not shown"
    )
    assert won.judge().reason == "acceptance is better and nothing else is worse"


def test_values_of_nothing_have_no_logarithm_and_an_arm_without_values_no_difference() -> None:
    guardrail = Guardrail("tpot", higher_is_better=False, margin=0.05)
    zero = SlotPair({"tpot": {"a": [0.0], "b": [1.0]}}, {"tpot": {"c": [1.0]}})
    assert zero.compare(guardrail) == BlockDifference(-0.0, 2 / 3)
    assert SlotPair({"tpot": {"a": [1.0]}}, {}).compare(guardrail) is None
    sliced = SlotPair({"tpot:chat": {"a": [1.0]}}, {"tpot:chat": {"b": [1.0]}})
    assert sliced.compare(guardrail) is None
