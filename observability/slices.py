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

    def add_progress(self, progress: DecodeProgress, now: float) -> None:
        sums = _to_sums(progress.whole)
        for window in self._select_windows(progress.slices):
            window.add(sums, now)
        for phase, share in progress.shares.items():
            self._get_slice((PHASE, phase.value)).add(_to_sums(share), now)

    def add_records(self, slices: SliceNames, records: list[RequestRecord], now: float) -> None:
        count = WindowSums(requests=len(records))
        for window in self._select_windows(slices):
            window.add(count, now)
        phases = Counter(phase for record in records for phase in _collect_phases(record))
        for phase, requests in phases.items():
            self._get_slice((PHASE, phase.value)).add(WindowSums(requests=requests), now)

    def forget(self, template: str) -> None:
        self._slices.pop((TEMPLATE, template), None)

    def of_kind(self, kind: str) -> Iterator[tuple[str, SlidingWindow]]:
        return ((name, window) for (k, name), window in self._slices.items() if k == kind)

    def by_labels(self) -> Iterable[tuple[Labels, SlidingWindow]]:
        return self._labels.items()

    def _select_windows(self, slices: SliceNames) -> Iterator[SlidingWindow]:
        labels = slices.labels
        yield self._get_labelled(labels)
        yield self._get_slice((ALL, ""))
        yield self._get_slice((LANE, labels.lane))
        yield self._get_slice((WORKLOAD, labels.workload))
        yield self._get_slice((CONTEXT, slices.context))
        yield self._get_slice((TEMPLATE, slices.template))

    def _get_slice(self, key: SliceKey) -> SlidingWindow:
        window = self._slices.get(key)
        if window is None:
            window = self._slices[key] = self._make_window()
        return window

    def _get_labelled(self, labels: Labels) -> SlidingWindow:
        window = self._labels.get(labels)
        if window is None:
            window = self._labels[labels] = self._make_window()
        return window

    def _make_window(self) -> SlidingWindow:
        return SlidingWindow(self._settings.window_s, self._settings.baseline_half_life_s)


def _to_sums(share: PhaseShare) -> WindowSums:
    return WindowSums(0, share.timed_tokens, share.seconds, share.totals)


def _collect_phases(record: RequestRecord) -> frozenset[Phase]:
    """Those that any of its choices had."""
    return frozenset().union(*(choice.phases for choice in record.choices))
