"""One request under observation: its choices, their account, and the record at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add

from engine.events import Phase
from engine.observer import Ending, RequestFacts, Tell
from engine.speculation.accounting import Totals
from observability.facts import ChoiceRecord, PhaseShares, RequestRecord, SliceNames, sum_shares
from observability.labels import OTHER
from observability.sequence import Clock, SequenceTimeline

ProgressSink = Callable[[SliceNames, PhaseShares, list[float]], None]


class ChoiceObservation:
    """A sequence and what has been settled of it."""

    __slots__ = ("phases", "sequence", "totals")

    def __init__(self, sequence: SequenceTimeline) -> None:
        self.sequence = sequence
        self.totals: Totals | None = None
        self.phases: frozenset[Phase] = frozenset()

    def settle(self, slices: SliceNames, tell: ProgressSink, *, ended: bool) -> None:
        """Tell what is new and certain; what was told once is never told again."""
        shares, gaps = self.sequence.settle(ended=ended)
        if not shares:
            return
        totals = sum_shares(shares).totals
        self.totals = totals if self.totals is None else self.totals + totals
        self.phases |= shares.keys()
        tell(slices, shares, gaps)

    def record(self) -> ChoiceRecord:
        sequence = self.sequence
        return ChoiceRecord(
            tokens=sequence.settled_tokens,
            tpot=sequence.tpot,
            totals=self.totals or Totals(),
            phases=self.phases,
            usage=sequence.usage,
            finish=sequence.finish,
            tools=tuple(sequence.tools),
            repairs=tuple(sequence.repairs),
        )


class RequestObservation:
    """``engine.observer.Observation`` for one request; made by ``Telemetry.begin``."""

    __slots__ = ("_choices", "_clock", "_ended", "_settled", "facts", "record", "slices")

    def __init__(
        self,
        facts: RequestFacts,
        slices: SliceNames,
        clock: Clock,
        settled: ProgressSink,
        ended: Callable[[RequestObservation, RequestRecord], None],
        late: bool = False,
    ) -> None:
        self.facts = facts
        self.slices = slices
        self.record: RequestRecord | None = None
        self._clock = clock
        self._settled = settled
        self._ended = ended
        self._choices = {
            id_: ChoiceObservation(SequenceTimeline(clock, late)) for id_ in facts.sequences
        }

    @property
    def sequences(self) -> Mapping[str, SequenceTimeline]:
        return {id_: choice.sequence for id_, choice in self._choices.items()}

    def choice(self, sequence: str) -> Tell:
        return self._choices[sequence].sequence.add_event

    def settle(self, *, ended: bool = False) -> None:
        """Hand over what is new; called when somebody reads, and at the end."""
        for choice in self._choices.values():
            choice.settle(self.slices, self._settled, ended=ended)

    def forget(self, template: str) -> None:
        """``template`` lost its name; what is still to come counts as ``other``."""
        if self.slices.template == template:
            self.slices = self.slices._replace(template=OTHER)

    def end(self, ending: Ending) -> None:
        self.settle(ended=True)
        if self.record is None:
            self.record = self._make_record(ending)
            self._ended(self, self.record)

    def _make_record(self, ending: Ending) -> RequestRecord:
        firsts = [
            choice.sequence.first_at
            for choice in self._choices.values()
            if choice.sequence.first_at is not None
        ]
        facts = self.facts
        choices = tuple(choice.record() for choice in self._choices.values())
        return RequestRecord(
            facts=facts,
            slices=self.slices,
            ending=ending,
            ttft=min(firsts) - facts.arrived if firsts else None,
            duration=self._clock() - facts.arrived,
            queued=facts.admitted - facts.arrived,
            choices=choices,
            totals=reduce(add, (choice.totals for choice in choices)),
        )
