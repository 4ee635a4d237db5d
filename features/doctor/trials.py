"""Judgement of trials, which run a request twice with the same greedy text to exclude traffic.

A text never depends on the draft, but its number of verify steps does. So a difference between two
runs of a text is due to the draft alone.
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
"""Relative fall for which ``FEW`` texts are enough."""
FEW = 3
ENOUGH = 8
"""Number of texts after which a fall below ``LEAST_FALL`` counts as none."""
MOST = 24
"""Number of texts after which a fall that may be chance counts as none."""


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a text: its tokens, and the number of verify steps."""

    tokens: tuple[int, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class PairedTrial:
    """The present run of a text, and the run with which it is compared."""

    request: EngineRequest
    now: TrialRun
    other: TrialRun

    @property
    def agrees(self) -> bool:
        return self.now.tokens == self.other.tokens


def measure_fall(trials: Sequence[PairedTrial]) -> float:
    """Return the relative fall of the acceptance length, over the texts that agree; 0 without
    any."""
    equal_trials = [trial for trial in trials if trial.agrees]
    steps = sum(trial.now.steps for trial in equal_trials)
    return 1 - sum(trial.other.steps for trial in equal_trials) / steps if steps else 0.0


def has_fallen(trials: Sequence[PairedTrial]) -> bool:
    """Return True if the present runs need more steps, by more than chance and by enough to
    matter."""
    differences, fall = _count_more(trials), measure_fall(trials)
    if fall >= PLAIN_FALL and len(differences) >= FEW:
        return True
    return fall >= LEAST_FALL and measure_chance(differences) <= CHANCE


def _count_more(trials: Sequence[PairedTrial]) -> list[int]:
    return [trial.now.steps - trial.other.steps for trial in trials if trial.agrees]


def measure_chance(differences: Sequence[int]) -> float:
    """Return the probability of a sum at least as great, if every difference had a random sign.

    Two runs that differ only by rounding can be exchanged, so this is exact for any spread of the
    differences (Fisher's randomization test of pairs).
    """
    ways = Counter({0: 1})  # choices of signs by their sum
    for difference in filter(None, differences):
        last_ways, ways = ways, Counter()
        for total, number in last_ways.items():
            ways[total + difference] += number
            ways[total - difference] += number
    return sum(ways[total] for total in ways if total >= sum(differences)) / ways.total()


def is_open(trials: Sequence[PairedTrial]) -> bool:
    """Return True if more texts may show a fall, or that a fall is not chance."""
    if len(trials) >= MOST or has_fallen(trials):
        return False
    return len(trials) < ENOUGH or measure_fall(trials) >= LEAST_FALL


def differs_in_text(trials: Sequence[PairedTrial]) -> bool:
    """Return True if most texts differ, so that the cached blocks are wrong for the target as
    well."""
    num_differing = sum(not trial.agrees for trial in trials)
    return num_differing >= 2 and 2 * num_differing > len(trials)
