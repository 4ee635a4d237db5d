"""What metric groups are told: progress while requests run, and their records at the end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

from engine.events import Outcome, Phase, Repair, Usage
from engine.observer import Ending, RequestFacts
from engine.speculation.accounting import Totals
from observability.labels import Labels
from observability.sequence import PhaseShare


class SliceNames(NamedTuple):
    """The bounded names a request is counted under, besides its labels."""

    labels: Labels
    context: str
    template: str


PhaseShares = dict[Phase, PhaseShare]


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """What all choices of the same slices did lately. ``gaps`` are seconds between steps."""

    slices: SliceNames
    shares: PhaseShares
    gaps: list[float]
    whole: PhaseShare
    """All shares together."""


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """One choice, ended."""

    tokens: int
    tpot: float | None
    totals: Totals
    """Over the whole choice."""
    phases: frozenset[Phase]
    usage: Usage | None
    """None when the choice did not reach its Finish."""
    finish: str | None
    tools: tuple[Outcome, ...]
    repairs: tuple[Repair, ...] = ()
    """What was mended in the arguments of its tool calls."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, ended. Durations in seconds."""

    facts: RequestFacts
    slices: SliceNames
    ending: Ending
    ttft: float | None
    """First output token - arrival; None when there was none."""
    duration: float
    """End - arrival."""
    queued: float
    """Admission - arrival."""
    choices: tuple[ChoiceRecord, ...]
    totals: Totals
    """Over all choices."""

    @property
    def tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)

    @property
    def interrupted(self) -> bool:
        """Output had begun and did not reach its end."""
        return self.facts.stream and self.ttft is not None and self.ending is not Ending.COMPLETED


def sum_shares(shares: PhaseShares) -> PhaseShare:
    return reduce(add, shares.values())
