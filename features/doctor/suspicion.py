"""Comparison of the acceptance of finished answers with their history, position by position.

A suspicion is cheap: it costs a few trials and never an action. It may therefore be wrong when
traffic changes, and the trials decide (``trials.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log
from operator import mul

from eaglegate.engine.types import DecodeStep, Drafter

LEARN = 40
"""Number of first answers that form the history with which later ones are compared."""
FALL = 0.15
"""Relative fall of the acceptance length that the test looks for."""
ALARM = 8.0
"""Evidence for such a fall that raises a suspicion, in nats."""
SURE = 0.98
"""Greatest assumed rate of a position, so that a single rejected draft is not proof."""


@dataclass(slots=True)
class PositionCounts:
    """Counts by draft position: tokens verified after all before them were accepted, and accepted
    tokens among these."""

    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Iterable[DecodeStep]) -> PositionCounts:
        counts = cls()
        for step in steps:
            if step.drafter is Drafter.LOOKUP:  # not the draft's work
                continue
            accepted = step.accepted + step.cut
            for place in range(min(accepted + 1, step.drafted)):
                counts.count(place, place < accepted)
        return counts

    def count(self, place: int, is_accepted: bool) -> None:
        while len(self.reached) <= place:
            self.reached.append(0)
            self.accepted.append(0)
        self.reached[place] += 1
        self.accepted[place] += is_accepted

    def add(self, other: PositionCounts) -> None:
        num_missing = len(other.reached) - len(self.reached)
        self.reached += [0] * num_missing
        self.accepted += [0] * num_missing
        for place, (num_reached, accepted) in enumerate(
            zip(other.reached, other.accepted, strict=True)
        ):
            self.reached[place] += num_reached
            self.accepted[place] += accepted

    def rate(self, place: int) -> float:
        """Return the conditional acceptance, close to that of all positions if this one is seldom
        reached."""
        mean_rate = (sum(self.accepted) + 1) / (sum(self.reached) + 2)
        num_reached, accepted = (
            (self.reached[place], self.accepted[place]) if place < len(self.reached) else (0, 0)
        )
        return min(SURE, (accepted + 10 * mean_rate) / (num_reached + 10))


def find_scale(rates: Sequence[float], fall: float) -> float:
    """Return the factor on conditional acceptance that makes the acceptance length fall by
    ``fall``.

    If nearly every draft is accepted, a small change is enough: a fall from 0.98 to 0.91 costs 15 %
    at K = 5. If few are accepted no factor is enough, and the result is one half.
    """
    low, high, target_length = 0.0, 1.0, (1 - fall) * measure_length(rates)
    for _ in range(20):
        middle = (low + high) / 2
        is_shorter = measure_length([middle * rate for rate in rates]) < target_length
        low, high = (middle, high) if is_shorter else (low, middle)
    return max(high, 0.5)


def measure_length(rates: Iterable[float]) -> float:
    """Return the acceptance length for the conditional acceptance of each position."""
    return 1.0 + sum(accumulate(rates, mul), 0.0)


class History:
    """Acceptance of the first answers, and the evidence that later answers fell below it.

    The evidence is a CUSUM of log likelihood ratios. Positions of one answer are not independent,
    so the ratios are divided by the dispersion of the learnt answers.
    """

    def __init__(self) -> None:
        self.counts = PositionCounts()
        self.answers = 0
        self.evidence = 0.0
        self.since = 0
        """Number of answers since the evidence was last 0."""
        self._learnt: list[PositionCounts] = []
        self._dispersion = 1.0
        self._scale = 1 - FALL

    @property
    def is_learnt(self) -> bool:
        return self.answers >= LEARN

    def learn(self, counts: PositionCounts) -> None:
        self.counts.add(counts)
        self.answers += 1
        self._learnt.append(counts)
        if self.is_learnt:
            self._dispersion = max(1.0, self._measure_dispersion())
            places = range(len(self.counts.reached))
            self._scale = find_scale([self.counts.rate(place) for place in places], FALL)
            self._learnt.clear()

    def _measure_dispersion(self) -> float:
        """Return the mean square of the answers' residuals, relative to that of independent
        drafts."""
        squares = []
        for counts in self._learnt:
            off = spread = 0.0
            for place, num_reached in enumerate(counts.reached):
                rate = self.counts.rate(place)
                off += counts.accepted[place] - num_reached * rate
                spread += num_reached * rate * (1 - rate)
            squares.append(off * off / max(spread, 1e-9))
        return sum(squares) / len(squares)

    def compare(self, counts: PositionCounts, prediction: History) -> bool:
        """Add an answer to the evidence, compared with the rates that ``prediction`` has learnt.

        Returns True if the evidence is enough for a suspicion.
        """
        nats = 0.0
        for place, num_reached in enumerate(counts.reached):
            rate = prediction.counts.rate(place)
            lower_rate = rate * prediction._scale
            accepted = counts.accepted[place]
            nats += accepted * log(lower_rate / rate)
            nats += (num_reached - accepted) * log((1 - lower_rate) / (1 - rate))
        self.evidence = max(0.0, self.evidence + nats / prediction._dispersion)
        self.since = self.since + 1 if self.evidence else 0
        return self.evidence >= ALARM

    def clear_evidence(self) -> None:
        self.evidence, self.since = 0.0, 0
