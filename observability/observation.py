"""Observation of one request: its progress while it runs, and its record at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

from eaglegate.engine.events import Ending, EventCallback, Observation, RequestFacts, Usage
from eaglegate.engine.totals import Totals
from eaglegate.observability.labels import NO_DRAFT, NO_KEY, OTHER, TEXT, Labels
from eaglegate.observability.sequence import MonotonicClock, PhaseShare, SequenceTimeline
from eaglegate.text.events import Outcome, Phase, Repair


class SliceNames(NamedTuple):
    """The bounded names under which a request is counted, in addition to its labels."""

    labels: Labels
    context: str
    template: str
    draft: str = NO_DRAFT
    """Fingerprint of the draft that currently serves the request."""
    key: str = NO_KEY
    input: str = TEXT
    """Kind of the prompt: text, or images with text."""


PhaseShares = dict[Phase, PhaseShare]


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """Progress of all choices of the same slices since the last report.

    ``gaps`` are seconds between steps.
    """

    slices: SliceNames
    shares: PhaseShares
    gaps: list[float]
    total: PhaseShare
    """Sum of all shares."""


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """Record of a finished choice."""

    tokens: int
    tpot: float | None
    totals: Totals
    """Totals of the whole choice."""
    phases: frozenset[Phase]
    usage: Usage | None
    """Token counts; None if the choice did not reach its Finish."""
    finish: str | None
    tools: tuple[Outcome, ...]
    repairs: tuple[Repair, ...] = ()
    """Repairs made in the arguments of the choice's tool calls."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Record of a finished request. Durations are in seconds."""

    facts: RequestFacts
    slices: SliceNames
    ending: Ending
    ttft: float | None
    """First output token - arrival; None without an output token."""
    duration: float
    """End - arrival."""
    queued: float
    """Admission - arrival."""
    choices: tuple[ChoiceRecord, ...]
    totals: Totals
    """Totals of all choices."""
    drafts: tuple[str, ...] = ()
    """Fingerprints of the drafts that served the request, in order."""

    @property
    def tokens(self) -> int:
        return sum([choice.tokens for choice in self.choices])

    @property
    def interrupted(self) -> bool:
        """True if output had begun and did not reach its end."""
        return self.facts.stream and self.ttft is not None and self.ending is not Ending.COMPLETED


def sum_shares(shares: PhaseShares) -> PhaseShare:
    return reduce(add, shares.values())


LIMIT = 256
"""Number of entries at which to count, because counting more at once delays the event loop."""


class PendingMetrics:
    """Progress and records since the last count. Each count starts a new object."""

    def __init__(self) -> None:
        self._progress: dict[SliceNames, tuple[PhaseShares, list[float]]] = {}
        self._records: defaultdict[SliceNames, list[RequestRecord]] = defaultdict(list)
        self._size = 0

    def add_progress(self, slices: SliceNames, shares: PhaseShares, gaps: list[float]) -> None:
        self._size += 1
        entry = self._progress.get(slices)
        if entry is None:
            self._progress[slices] = shares, gaps
            return
        for phase, share in shares.items():
            own_share = entry[0].get(phase)
            entry[0][phase] = share if own_share is None else own_share + share
        entry[1].extend(gaps)

    def add_record(self, record: RequestRecord) -> None:
        self._records[record.slices].append(record)

    @property
    def full(self) -> bool:
        return self._size >= LIMIT

    def progress(self) -> Iterator[DecodeProgress]:
        for slices, (shares, gaps) in self._progress.items():
            yield DecodeProgress(slices, shares, gaps, sum_shares(shares))

    def records(self) -> Iterator[tuple[SliceNames, list[RequestRecord]]]:
        return iter(self._records.items())

    def records_by_labels(self) -> dict[Labels, list[RequestRecord]]:
        out: dict[Labels, list[RequestRecord]] = defaultdict(list)
        for slices, records in self._records.items():
            out[slices.labels] += records
        return out


ProgressSink = Callable[[SliceNames, PhaseShares, list[float]], None]


class ChoiceObservation:
    """A sequence and its settled totals."""

    __slots__ = ("phases", "sequence", "totals")

    def __init__(self, sequence: SequenceTimeline) -> None:
        self.sequence = sequence
        self.totals: Totals | None = None
        self.phases: frozenset[Phase] = frozenset()

    def settle(self, slices: SliceNames, report: ProgressSink, *, ended: bool) -> None:
        """Report the progress that is new and certain, once."""
        shares, gaps = self.sequence.settle(ended=ended)
        if not shares:
            return
        totals = sum_shares(shares).totals
        self.totals = totals if self.totals is None else self.totals + totals
        self.phases |= shares.keys()
        report(slices, shares, gaps)

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


NOT_SENT = ("", b"")
"""Path and body of a request without an exchange."""


class RequestObservation(Observation):
    """Observation of one request, from ``Telemetry.begin``."""

    __slots__ = (
        "_choices",
        "_clock",
        "_ended",
        "_settled",
        "drafts",
        "explained",
        "facts",
        "record",
        "sent",
        "session",
        "slices",
    )

    def __init__(
        self,
        facts: RequestFacts,
        slices: SliceNames,
        clock: MonotonicClock,
        report: ProgressSink,
        on_end: Callable[[RequestObservation, RequestRecord], None],
        accounts_late: bool = False,
    ) -> None:
        self.facts = facts
        self.slices = slices
        self.drafts = [slices.draft] if slices.draft != NO_DRAFT else []
        self.record: RequestRecord | None = None
        self.session: str | None = None
        """Session of a captured request; None if it is not captured."""
        self.sent = NOT_SENT
        self.explained: object = None
        """The request's entry among the explanations, once it has ended."""
        self._clock = clock
        self._settled = report
        self._ended = on_end
        self._choices = {
            id_: ChoiceObservation(SequenceTimeline(clock, accounts_late))
            for id_ in facts.sequences
        }

    @property
    def sequences(self) -> Mapping[str, SequenceTimeline]:
        return {id_: choice.sequence for id_, choice in self._choices.items()}

    def capture(self, session: str | None, sent: tuple[str, bytes]) -> None:
        """Keep every step and the sent body for the capture. Do nothing without a session."""
        if session is None:
            return
        self.session, self.sent = session, sent
        for timeline in self.sequences.values():
            timeline.log = []

    def choice(self, sequence: str) -> EventCallback:
        return self._choices[sequence].sequence.add_event

    def settle(self, *, ended: bool = False) -> None:
        """Report new progress. Called on every scrape and at the end."""
        for choice in self._choices.values():
            choice.settle(self.slices, self._settled, ended=ended)

    def forget(self, template: str) -> None:
        """Count further progress as ``other`` if ``template`` lost its name."""
        if self.slices.template == template:
            self.slices = self.slices._replace(template=OTHER)

    def forget_key(self, key: str) -> None:
        """Count further progress as ``other`` if ``key`` is no longer counted by name."""
        if self.slices.key == key:
            self.slices = self.slices._replace(key=OTHER)

    def change_draft(self, draft: str) -> None:
        """Count further progress for ``draft``. The caller settles earlier progress first."""
        self.slices = self.slices._replace(draft=draft)
        if draft not in self.drafts:
            self.drafts.append(draft)

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
        choices = tuple([choice.record() for choice in self._choices.values()])
        return RequestRecord(
            facts=facts,
            slices=self.slices,
            ending=ending,
            ttft=min(firsts) - facts.arrived if firsts else None,
            duration=self._clock() - facts.arrived,
            queued=facts.admitted - facts.arrived,
            choices=choices,
            totals=reduce(add, [choice.totals for choice in choices]),
            drafts=tuple(self.drafts),
        )
