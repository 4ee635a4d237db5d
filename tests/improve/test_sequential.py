"""The sequential test of a canary, simulated: its error rates, its power, its rules."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from improve.sequential import (
    BlockDifference,
    CanaryFindings,
    CanaryRules,
    CanaryTest,
    CanaryVerdict,
    Guardrail,
    Scale,
    SlotPair,
    find_interval,
)

pytestmark = pytest.mark.thorough

RUNS = 200
RULES = CanaryRules(max_blocks=40)
Values = dict[str, dict[str, list[float]]]


class Traffic:
    """Sessions that differ, under a load that drifts; requests of one session are alike."""

    def __init__(self, seed: int, gain: float = 1.0, slower: float = 1.0, tools: float = 1.0):
        self.random = random.Random(seed)
        self.gain, self.slower, self.tools = gain, slower, tools
        self.at = 0

    def make_slot(self, candidate: bool) -> Values:
        out, load = make_values(), self.find_load()
        for session in range(self.random.randint(5, 11)):
            self.add_session(out, f"{self.at}-{session}", load, candidate)
        return out

    def make_span(self, share: float) -> SlotPair:
        """The arms at the same time, a share of the sessions in the candidate's."""
        arms, load = [make_values(), make_values()], self.find_load()
        for session in range(self.random.randint(10, 22)):
            candidate = self.random.random() < share
            self.add_session(arms[candidate], f"{self.at}-{session}", load, candidate)
        return SlotPair(*arms)

    def find_load(self) -> float:
        self.at += 1
        return 1 + 0.3 * math.sin(self.at / 7) + 0.02 * self.random.gauss(0, 1)

    def add_session(self, out: Values, name: str, load: float, candidate: bool) -> None:
        workload = "tools" if self.random.random() < 0.3 else "chat"
        own = self.random.lognormvariate(0, 0.25) * (2.2 if workload == "tools" else 1)
        for _ in range(self.random.randint(1, 5)):
            self.add_request(out, name, workload, own, load, candidate)

    def add_request(
        self, out: Values, name: str, workload: str, own: float, load: float, candidate: bool
    ) -> None:
        gain, slower = (self.gain, self.slower) if candidate else (1.0, 1.0)
        if candidate and workload == "tools":
            gain *= self.tools
        noise = [self.random.lognormvariate(0, 0.1) for _ in range(2)]
        length = 1 + 1.8 * gain * own * noise[0]
        out["acceptance"][name].append(length)
        out["acceptance:" + workload][name].append(length)
        tpot = slower * load * noise[1] / length
        for metric in ("tpot", "tpot:" + workload):
            out[metric][name].append(tpot)
        out["fallback"][name].append(self.random.betavariate(2, 8))
        out["failed"][name].append(float(self.random.random() < 0.01))
        if workload == "tools":
            out["tool_failed"][name].append(float(self.random.random() < 0.03))

    def make_block(self) -> SlotPair:
        first = bool(self.random.random() < 0.5)
        slots = {arm: self.make_slot(arm) for arm in (first, not first)}
        return SlotPair(slots[False], slots[True])

    def run(
        self, rules: CanaryRules = RULES, share: float | None = None
    ) -> tuple[CanaryVerdict, int]:
        """Looks after every block, and stops at the first verdict."""
        test = CanaryTest(rules)
        while True:
            test.add(self.make_block() if share is None else self.make_span(share))
            found = test.judge()
            if found.ended:
                return found.verdict, found.blocks


def make_values() -> Values:
    return defaultdict(lambda: defaultdict(list))


def run_many(
    runs: int = RUNS, rules: CanaryRules = RULES, share: float | None = None, **change: float
) -> tuple[Counter[CanaryVerdict], float]:
    found = [Traffic(seed, **change).run(rules, share) for seed in range(runs)]
    return Counter(verdict for verdict, _ in found), float(np.median([n for _, n in found]))


def test_two_equal_arms_are_neither_promoted_nor_rolled_back() -> None:
    """At alpha = 0.05, with 40 looks at eight metrics, 200 runs."""
    verdicts, _ = run_many()
    assert verdicts[CanaryVerdict.PROMOTE] <= 0.05 * RUNS
    assert verdicts[CanaryVerdict.ROLL_BACK] <= 0.05 * RUNS


def test_a_better_draft_is_promoted() -> None:
    verdicts, blocks = run_many(40, CanaryRules(max_blocks=120), gain=1.25)
    assert verdicts[CanaryVerdict.PROMOTE] >= 34
    assert not verdicts[CanaryVerdict.ROLL_BACK]
    assert blocks < 80


def test_a_worse_draft_is_rolled_back_early() -> None:
    verdicts, blocks = run_many(60, gain=0.7)
    assert verdicts[CanaryVerdict.ROLL_BACK] >= 57
    assert not verdicts[CanaryVerdict.PROMOTE]
    assert blocks <= 20


def test_a_slower_candidate_is_not_promoted() -> None:
    verdicts, _ = run_many(60, gain=1.1, slower=1.3)
    assert not verdicts[CanaryVerdict.PROMOTE]


def test_a_draft_that_forgets_one_slice_is_not_promoted() -> None:
    verdicts, _ = run_many(60, gain=1.25, tools=0.6)
    assert verdicts[CanaryVerdict.PROMOTE] <= 1


@pytest.mark.parametrize("share", [None, 0.5])
def test_rules_of_the_same_effect_are_neither_promoted_nor_rolled_back(
    share: float | None,
) -> None:
    verdicts, _ = run_many(100, CanaryRules.for_tpot(max_blocks=40), share)
    assert verdicts[CanaryVerdict.PROMOTE] <= 5
    assert verdicts[CanaryVerdict.ROLL_BACK] <= 5


@pytest.mark.parametrize("share", [None, 0.5, 0.3])
def test_rules_are_judged_by_time(share: float | None) -> None:
    """Faster by a fifth, though fewer tokens are accepted; and slower, though more are."""
    rules = CanaryRules.for_tpot(max_blocks=200)
    verdicts, _ = run_many(20, rules, share, gain=0.8, slower=0.7)
    assert verdicts[CanaryVerdict.PROMOTE] >= 17
    verdicts, _ = run_many(20, rules, share, gain=1.2, slower=1.5)
    assert verdicts[CanaryVerdict.ROLL_BACK] >= 18


def test_what_the_traffic_is_made_of_does_not_count() -> None:
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


def test_the_interval_holds_at_all_times_at_once() -> None:
    assert count_misses(lambda draws: np.ones(100)) <= 0.1 * 400


def test_the_interval_holds_where_blocks_differ_in_size() -> None:
    """Tenfold by day and night, and at random."""
    daily = 10 ** np.sin(np.arange(100) / 8)
    assert count_misses(lambda draws: daily * draws.lognormal(0, 0.5, 100)) <= 0.1 * 400


def count_misses(weigh: Callable[[np.random.Generator], np.ndarray]) -> int:
    """Of 400 runs of 100 blocks those whose interval at 0.1 once did not hold the true mean."""
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


def judge(blocks: Sequence[SlotPair]) -> CanaryFindings:
    test = CanaryTest(RULES)
    for block in blocks:
        test.add(block)
    return test.judge()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_blocks_say_nothing(count: int) -> None:
    interval = find_interval(make_blocks([0.1] * count), 0.05)
    assert (interval.low, interval.high) == (-math.inf, math.inf)


def test_equal_blocks_do_not_decide_at_once() -> None:
    """Without a floor, no variance would mean no doubt."""
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
