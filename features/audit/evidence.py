"""The verdict on one answer, and a sequential test over the answers of a slice.

Tokens that are chosen by a maximum are proof by themselves. Tokens that are drawn at random prove
something only together. For each, the engine gives likelihood ratios q(token) / p(token): p is the
distribution that the request asked for, and q the one from which a certain kind of fault would draw
(``FAMILIES`` in ``features/audit/engine/scoring.py``). Given the tokens before it, each ratio has a
mean of at most 1 as long as p is true, so their product over tokens and answers is a test
martingale. ``SequentialTest`` keeps the Shiryaev-Roberts sum of those products, which restarts at
every answer and so finds a fault that begins late: R <- (1 + R) * ratio, averaged over the kinds of
faults. This is an e-detector (Shin, Ramdas, Rinaldo, 2023): with a threshold A the mean number of
answers before a false alarm is at least A, however often the sum is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from eaglegate.engine.speculation.accounts.scores import AnswerScores

THRESHOLD = 1e9
"""Least mean number of answers of one slice before a false alarm."""
NO_FLOOR = -math.inf


class AuditOutcome(StrEnum):
    """Verdict on an audited answer."""

    LOSSLESS = "lossless"
    NEAR_TIE = "near_tie"
    """A token differs from the target's choice by no more than rounding explains."""
    VIOLATED = "violated"


def judge_margins(scores: AnswerScores, tie: float) -> AuditOutcome:
    """Judge the tokens of an answer one by one. ``tie`` is the margin in nats that rounding
    explains."""
    _, margin = scores.worst
    if margin > tie:
        return AuditOutcome.VIOLATED
    return AuditOutcome.NEAR_TIE if margin > 0 else AuditOutcome.LOSSLESS


class SequentialTest:
    """Evidence against the sampled answers of one slice, with an alarm at ``threshold``."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self.answers = 0
        self.tokens = 0
        self._sums: dict[str, float] = {}
        """Logarithms of the Shiryaev-Roberts sums, by the kind of fault."""

    def add(self, evidence: Mapping[str, float], tokens: int) -> bool:
        """Add an answer. Return True if the evidence reaches the threshold.

        Every answer must have the same kinds of faults; one without evidence on a kind has 0 for
        it.
        """
        self.answers += 1
        self.tokens += tokens
        for kind, ratio in evidence.items():
            self._sums[kind] = _add_one(self._sums.get(kind, NO_FLOOR)) + ratio
        return self.log_evidence >= math.log(self.threshold)

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the mean sum; below 0 before the first answer."""
        if not self._sums:
            return NO_FLOOR
        largest_sum = max(self._sums.values())
        total = sum(math.exp(value - largest_sum) for value in self._sums.values())
        return largest_sum + math.log(total / len(self._sums))

    @property
    def strongest(self) -> str:
        """The kind of fault with the strongest evidence."""
        return max(self._sums, key=self._sums.__getitem__, default="")


def _add_one(log_sum: float) -> float:
    """Return log(1 + exp(log_sum))."""
    return (
        log_sum + math.log1p(math.exp(-log_sum)) if log_sum > 0 else math.log1p(math.exp(log_sum))
    )
