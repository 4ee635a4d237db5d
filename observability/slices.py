"""What every slice did lately: the live state behind windowed gauges and /debug/speculation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from engine.events import Phase
from observability.facts import DecodeProgress, RequestRecord, SliceNames
from observability.labels import Labels
from observability.sequence import PhaseShare
from observability.settings import TelemetrySettings
from observability.window import SlidingWindow, WindowSums

ALL, LANE, WORKLOAD, CONTEXT, PHASE, TEMPLATE = KINDS = (
    "all",
    "lane",
    "workload",
    "context",
    "phase",
    "template",
)
SliceKey = tuple[str, str]


class SliceWindows:
    """One window per slice and one per label set; bounded because every name in it is."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._slices: dict[SliceKey, SlidingWindow] = {}
        self._labels: dict[Labels, SlidingWindow] = {}

    def progressed(self, progress: DecodeProgress, now: float) -> None:
        sums = _sums(progress.whole)
        for window in self._windows(progress.slices):
            window.add(sums, now)
        for phase, share in progress.shares.items():
            self._slice((PHASE, phase.value)).add(_sums(share), now)

    def ended(self, slices: SliceNames, records: list[RequestRecord], now: float) -> None:
        count = WindowSums(requests=len(records))
        for window in self._windows(slices):
            window.add(count, now)
        phases = Counter(phase for record in records for phase in _phases(record))
        for phase, requests in phases.items():
            self._slice((PHASE, phase.value)).add(WindowSums(requests=requests), now)

    def forget(self, template: str) -> None:
        self._slices.pop((TEMPLATE, template), None)

    def of_kind(self, kind: str) -> Iterator[tuple[str, SlidingWindow]]:
        return ((name, window) for (k, name), window in self._slices.items() if k == kind)

    def by_labels(self) -> Iterable[tuple[Labels, SlidingWindow]]:
        return self._labels.items()

    def _windows(self, slices: SliceNames) -> Iterator[SlidingWindow]:
        labels = slices.labels
        yield self._label(labels)
        yield self._slice((ALL, ""))
        yield self._slice((LANE, labels.lane))
        yield self._slice((WORKLOAD, labels.workload))
        yield self._slice((CONTEXT, slices.context))
        yield self._slice((TEMPLATE, slices.template))

    def _slice(self, key: SliceKey) -> SlidingWindow:
        window = self._slices.get(key)
        if window is None:
            window = self._slices[key] = self._new()
        return window

    def _label(self, labels: Labels) -> SlidingWindow:
        window = self._labels.get(labels)
        if window is None:
            window = self._labels[labels] = self._new()
        return window

    def _new(self) -> SlidingWindow:
        return SlidingWindow(self._settings.window_s, self._settings.baseline_half_life_s)


def _sums(share: PhaseShare) -> WindowSums:
    return WindowSums(0, share.timed_tokens, share.seconds, share.totals)


def _phases(record: RequestRecord) -> frozenset[Phase]:
    """Those that any of its choices had."""
    return frozenset().union(*(choice.phases for choice in record.choices))
