"""Compare the acceptance of finished answers with their own history, position by position.

A suspicion is cheap: it costs a few trials and never an action. It may therefore be wrong where
traffic changes; the trials tell (``trials.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log
from operator import mul

from eaglegate.engine.types import DecodeStep

LEARN = 40
"""Answers whose acceptance is the history that later ones are compared with."""
FALL = 0.15
"""Relative fall of the acceptance length that the test looks for."""
ALARM = 8.0
"""Nats of evidence for such a fall."""
SURE = 0.98
"""Greatest rate of a position: a single rejected draft is not proof."""


@dataclass(slots=True)
class PositionCounts:
    """Draft tokens by their position: those that were verified after all before them were accepted,
    and those of them that were accepted.
    """

    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Iterable[DecodeStep]) -> PositionCounts:
        counts = cls()
        for step in steps:
            accepted = step.accepted + step.cut
            for place in range(min(accepted + 1, step.drafted)):
                counts.count(place, place < accepted)
        return counts

    def count(self, place: int, accepted: bool) -> None:
        while len(self.reached) <= place:
            self.reached.append(0)
            self.accepted.append(0)
        self.reached[place] += 1
        self.accepted[place] += accepted

    def add(self, other: PositionCounts) -> None:
        missing = len(other.reached) - len(self.reached)
        self.reached += [0] * missing
        self.accepted += [0] * missing
        for place, (reached, accepted) in enumerate(
            zip(other.reached, other.accepted, strict=True)
        ):
            self.reached[place] += reached
            self.accepted[place] += accepted

    def rate(self, place: int) -> float:
        """Conditional acceptance, near that of all positions where one is seldom reached."""
        whole = (sum(self.accepted) + 1) / (sum(self.reached) + 2)
        reached, accepted = (
            (self.reached[place], self.accepted[place]) if place < len(self.reached) else (0, 0)
        )
        return min(SURE, (accepted + 10 * whole) / (reached + 10))


def find_scale(rates: Sequence[float], fall: float) -> float:
    """The factor on conditional acceptance by which the acceptance length falls by ``fall``.

    Where nearly every draft is accepted a small factor does: 0.98 falling to 0.91 costs 15 % at
    K = 5. Where few are accepted no factor does, and half is looked for.
    """
    low, high, wanted = 0.0, 1.0, (1 - fall) * measure_length(rates)
    for _ in range(20):
        middle = (low + high) / 2
        shorter = measure_length([middle * rate for rate in rates]) < wanted
        low, high = (middle, high) if shorter else (low, middle)
    return max(high, 0.5)


def measure_length(rates: Iterable[float]) -> float:
    """Acceptance length by the conditional acceptance of each position."""
    return 1.0 + sum(accumulate(rates, mul), 0.0)


class History:
    """Acceptance of the first answers, and the evidence that later ones fell below it.

    The evidence is a CUSUM of log likelihood ratios. Positions of one answer are not independent:
    the ratios are divided by the dispersion of the answers that were learnt from.
    """

    def __init__(self) -> None:
        self.counts = PositionCounts()
        self.answers = 0
        self.evidence = 0.0
        self.since = 0
        """Answers since the evidence was last 0."""
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
        """Mean square of the answers' residuals over what independent drafts would have."""
        squares = []
        for counts in self._learnt:
            off = spread = 0.0
            for place, reached in enumerate(counts.reached):
                rate = self.counts.rate(place)
                off += counts.accepted[place] - reached * rate
                spread += reached * rate * (1 - rate)
            squares.append(off * off / max(spread, 1e-9))
        return sum(squares) / len(squares)

    def compare(self, counts: PositionCounts, predicted: History) -> bool:
        """Add an answer to the evidence, against what ``predicted`` has learnt; whether it is
        enough for a suspicion.
        """
        nats = 0.0
        for place, reached in enumerate(counts.reached):
            rate = predicted.counts.rate(place)
            lower = rate * predicted._scale
            accepted = counts.accepted[place]
            nats += accepted * log(lower / rate)
            nats += (reached - accepted) * log((1 - lower) / (1 - rate))
        self.evidence = max(0.0, self.evidence + nats / predicted._dispersion)
        self.since = self.since + 1 if self.evidence else 0
        return self.evidence >= ALARM

    def clear_evidence(self) -> None:
        self.evidence, self.since = 0.0, 0
