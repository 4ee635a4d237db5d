"""Judge trials: the same request twice, with the same greedy text, so that traffic cannot differ.

A text never depends on the draft. The number of verify steps that a text takes does, and so a
difference between two runs of it is the draft's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

LEAST_FALL = 0.04
"""Least relative fall of the acceptance length that counts."""
ENOUGH = 5
"""Trials after which a fall is judged by its spread."""
CLEAR = 2.2
"""Their sum over its spread, from which on it is no chance: one in a hundred for random signs."""
PLAIN_FALL = 0.2
"""A fall that needs no more than one text."""
FEW = 3
"""Texts with a fall of ``PLAIN_FALL`` after which no more are tried."""
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
    more = [trial.now.steps - trial.other.steps for trial in trials if trial.agrees]
    fall = measure_fall(trials)
    if fall < LEAST_FALL:
        return False
    if fall >= PLAIN_FALL:
        return True
    return len(more) >= ENOUGH and sum(more) >= CLEAR * sqrt(sum(d * d for d in more))


def is_settled(trials: Sequence[PairedTrial]) -> bool:
    """Whether the fall is so plain that no more trials are needed."""
    return sum(trial.agrees for trial in trials) >= FEW and measure_fall(trials) >= PLAIN_FALL


def is_unclear(trials: Sequence[PairedTrial]) -> bool:
    """Whether there is a fall that may be chance: longer trials would tell."""
    return measure_fall(trials) >= LEAST_FALL and not has_fallen(trials)


def differs_in_text(trials: Sequence[PairedTrial]) -> bool:
    """Most texts differ: what is read from the cache is wrong for the target, too."""
    differing = sum(not trial.agrees for trial in trials)
    return differing >= 2 and 2 * differing > len(trials)
