"""Judge trials: the same request twice, with the same greedy text, so that traffic cannot differ.

A text never depends on the draft. The number of verify steps that a text takes does, and so a
difference between two runs of it is the draft's alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eaglegate.engine.types import EngineRequest

LEAST_FALL = 0.04
"""Least relative fall of the acceptance length that counts."""
CHANCE = 0.005
"""Greatest probability of a fall, if its differences had random signs."""
PLAIN_FALL = 0.2
"""A fall that needs no more than ``FEW`` texts."""
FEW = 3
ENOUGH = 8
"""Texts after which a fall below ``LEAST_FALL`` is taken for none."""
MOST = 24
"""Texts after which a fall that may be chance is taken for none."""
CURED = 0.02
"""Relative fall that may be left after a cure."""


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a text: its tokens, and the verify steps that they took."""

    tokens: tuple[int, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class PairedTrial:
    """A text's run as it is now, and the run that it is compared with."""

    request: EngineRequest
    now: TrialRun
    other: TrialRun

    @property
    def agrees(self) -> bool:
        return self.now.tokens == self.other.tokens


def measure_fall(trials: Sequence[PairedTrial]) -> float:
    """Relative fall of the acceptance length now, over the texts that agree; 0 without any."""
    same = [trial for trial in trials if trial.agrees]
    steps = sum(trial.now.steps for trial in same)
    return 1 - sum(trial.other.steps for trial in same) / steps if steps else 0.0


def has_fallen(trials: Sequence[PairedTrial]) -> bool:
    """Whether more steps are needed now, by more than chance and by enough to matter."""
    more, fall = _count_more(trials), measure_fall(trials)
    if fall >= PLAIN_FALL and len(more) >= FEW:
        return True
    return fall >= LEAST_FALL and measure_chance(more) <= CHANCE


def _count_more(trials: Sequence[PairedTrial]) -> list[int]:
    return [trial.now.steps - trial.other.steps for trial in trials if trial.agrees]


def measure_chance(differences: Sequence[int]) -> float:
    """Probability of so great a sum, if every difference had either sign with the same probability.

    Two runs that differ by rounding alone can be exchanged, so this is exact for any spread of the
    differences (Fisher's randomization test of pairs).
    """
    ways = Counter({0: 1})  # choices of signs by their sum
    for difference in filter(None, differences):
        chosen, ways = ways, Counter()
        for total, number in chosen.items():
            ways[total + difference] += number
            ways[total - difference] += number
    return sum(ways[total] for total in ways if total >= sum(differences)) / ways.total()


def is_open(trials: Sequence[PairedTrial]) -> bool:
    """Whether more texts may show a fall, or show it to be no chance."""
    if len(trials) >= MOST or has_fallen(trials):
        return False
    return len(trials) < ENOUGH or measure_fall(trials) >= LEAST_FALL


def is_cured(trials: Sequence[PairedTrial]) -> bool:
    """Whether no more of a fall is left than ``CURED``, or than chance leaves."""
    if differs_in_text(trials):
        return False
    more, left = _count_more(trials), measure_fall(trials)
    return left <= CURED or (left < LEAST_FALL and measure_chance(more) > CHANCE)


def differs_in_text(trials: Sequence[PairedTrial]) -> bool:
    """Most texts differ: what is read from the cache is wrong for the target, too."""
    differing = sum(not trial.agrees for trial in trials)
    return differing >= 2 and 2 * differing > len(trials)
