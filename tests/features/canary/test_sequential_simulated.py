"""The sequential test of a canary, simulated: its error rates and its power."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.sequential import CanaryRules
from tests.features.canary.simulated_sessions import RULES, Traffic

pytestmark = pytest.mark.thorough

RUNS = 100


def run_many(
    runs: int = RUNS, rules: CanaryRules = RULES, share: float | None = None, **change: float
) -> tuple[Counter[CanaryVerdict], float]:
    found = [Traffic(seed, **change).run(rules, share) for seed in range(runs)]
    return Counter(verdict for verdict, _ in found), float(np.median([n for _, n in found]))


def test_two_equal_arms_are_neither_promoted_nor_rolled_back() -> None:
    """100 runs with alpha = 0.05 and 40 looks at eight metrics."""
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
    verdicts, _ = run_many(40, CanaryRules.for_tpot(max_blocks=40), share)
    assert verdicts[CanaryVerdict.PROMOTE] <= 2
    assert verdicts[CanaryVerdict.ROLL_BACK] <= 2


@pytest.mark.parametrize("share", [None, 0.3])
def test_rules_are_judged_by_time(share: float | None) -> None:
    """Faster by a fifth, though fewer tokens are accepted; and slower, though more are."""
    rules = CanaryRules.for_tpot(max_blocks=200)
    verdicts, _ = run_many(20, rules, share, gain=0.8, slower=0.7)
    assert verdicts[CanaryVerdict.PROMOTE] >= 17
    verdicts, _ = run_many(20, rules, share, gain=1.2, slower=1.5)
    assert verdicts[CanaryVerdict.ROLL_BACK] >= 18
