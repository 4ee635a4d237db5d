"""Sliding windows: the current state of every slice of the traffic, and its earlier baseline.

They feed the windowed gauges and ``GET /debug/speculation``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add, attrgetter

from eaglegate.engine.events import Ending
from eaglegate.engine.totals import Totals
from eaglegate.observability.labels import NO_KEY, TEXT, Labels, TelemetrySettings
from eaglegate.observability.observation import DecodeProgress, RequestRecord, SliceNames
from eaglegate.observability.sequence import PhaseShare

BUCKETS = 30
FAILED = (Ending.TIMEOUT, Ending.ENGINE)
"""Endings of requests that are the server's fault."""


@dataclass(frozen=True, slots=True)
class WindowSums:
    """Sums of one slice over a span of time."""

    requests: int = 0
    timed_tokens: int = 0
    seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)
    failed: int = 0
    """Requests that the engine or a deadline of the gateway ended."""
    started: int = 0
    """Requests that had a first token."""
    waited_s: float = 0.0
    """Sum of the seconds from their arrival to their first token."""

    @classmethod
    def of(cls, share: PhaseShare) -> WindowSums:
        return cls(0, share.timed_tokens, share.seconds, share.totals)

    def __add__(self, other: WindowSums) -> WindowSums:
        return WindowSums(*map(add, _SUMS(self), _SUMS(other)))

    @property
    def tpot(self) -> float | None:
        """Pooled TPOT: time of all decode steps / tokens that they delivered."""
        return self.seconds / self.timed_tokens if self.timed_tokens else None

    @property
    def ttft(self) -> float | None:
        """Mean time to the first token, in seconds."""
        return self.waited_s / self.started if self.started else None

    def describe(self) -> dict[str, float | None]:
        """Return the numbers that every page shows."""
        return {
            "acceptance_length": self.totals.acceptance_length,
            "fallback_ratio": self.totals.fallback_ratio,
            "tpot_s": self.tpot,
            "ttft_s": self.ttft,
            "failed": self.failed,
        }


_SUMS = attrgetter(*WindowSums.__slots__)


class SlidingWindow:
    """A ring of buckets. Expired buckets join an exponentially forgotten baseline.

    The baseline never overlaps the window, so a collapse cannot hide in its own reference.
    """

    def __init__(self, span_s: float, half_life_s: float) -> None:
        self._bucket_s = span_s / BUCKETS
        self._keep = 0.5 ** (self._bucket_s / half_life_s)
        self._buckets: deque[tuple[int, WindowSums]] = deque()
        self._verified = 0.0
        self._accepted = 0.0
        self._forgotten_at = 0

    def add(self, sums: WindowSums, now: float) -> None:
        bucket = self._expire(now)
        if self._buckets and self._buckets[-1][0] == bucket:
            self._buckets[-1] = (bucket, self._buckets[-1][1] + sums)
        else:
            self._buckets.append((bucket, sums))

    def sums(self, now: float) -> WindowSums:
        self._expire(now)
        return reduce(add, (sums for _, sums in self._buckets), WindowSums())

    def baseline(self, now: float) -> float | None:
        """Return the acceptance length before the window, weighted by steps; None without data."""
        self._expire(now)
        return 1 + self._accepted / self._verified if self._verified >= 1 else None

    def history(self, now: float) -> Iterator[tuple[float, WindowSums]]:
        """Yield the age in seconds and the sums of each bucket with data."""
        bucket = self._expire(now)
        for index, sums in self._buckets:
            yield (bucket - index) * self._bucket_s, sums

    @property
    def bucket_s(self) -> float:
        return self._bucket_s

    def _expire(self, now: float) -> int:
        bucket = int(now / self._bucket_s)
        while self._buckets and self._buckets[0][0] <= bucket - BUCKETS:
            self._forget(*self._buckets.popleft())
        return bucket

    def _forget(self, bucket: int, sums: WindowSums) -> None:
        decay = self._keep ** (bucket - self._forgotten_at)
        self._forgotten_at = bucket
        self._verified = self._verified * decay + sums.totals.verify_steps
        self._accepted = self._accepted * decay + sums.totals.accepted


ALL, LANE, WORKLOAD, CONTEXT, PHASE, TEMPLATE, KEY, INPUT = KINDS = (
    "all",
    "lane",
    "workload",
    "context",
    "phase",
    "template",
    "key",
    "input",
)
SliceKey = tuple[str, str]


def name_slices(slices: SliceNames) -> dict[str, str]:
    """Return the slices that count the whole request, by kind. Its phases differ by step. Prompts
    without images have no slice by input."""
    labels = slices.labels
    names = {
        ALL: "",
        LANE: labels.lane,
        WORKLOAD: labels.workload,
        CONTEXT: slices.context,
        TEMPLATE: slices.template,
    }
    if slices.input != TEXT:
        names[INPUT] = slices.input
    return names if slices.key == NO_KEY else names | {KEY: slices.key}


class SliceWindows:
    """One window per slice and one per label set. Bounded, because every name in them is."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._slices: dict[SliceKey, SlidingWindow] = {}
        self._labels: dict[Labels, SlidingWindow] = {}

    def add_progress(self, progress: DecodeProgress, now: float) -> None:
        sums = WindowSums.of(progress.total)
        for window in self._select_windows(progress.slices):
            window.add(sums, now)
        for phase, share in progress.shares.items():
            self._get_slice((PHASE, phase.value)).add(WindowSums.of(share), now)

    def add_records(self, slices: SliceNames, records: list[RequestRecord], now: float) -> None:
        waits = [record.ttft for record in records if record.ttft is not None]
        num_failed = sum(record.ending in FAILED for record in records)
        count = WindowSums(len(records), failed=num_failed, started=len(waits), waited_s=sum(waits))
        for window in self._select_windows(slices):
            window.add(count, now)
        phases = Counter(
            phase
            for record in records
            for phase in {phase for choice in record.choices for phase in choice.phases}
        )
        for phase, requests in phases.items():
            self._get_slice((PHASE, phase.value)).add(WindowSums(requests=requests), now)

    def forget(self, kind: str, name: str) -> None:
        self._slices.pop((kind, name), None)

    def of_kind(self, kind: str) -> Iterator[tuple[str, SlidingWindow]]:
        return ((name, window) for (k, name), window in self._slices.items() if k == kind)

    def by_labels(self) -> Iterable[tuple[Labels, SlidingWindow]]:
        return self._labels.items()

    def _select_windows(self, slices: SliceNames) -> Iterator[SlidingWindow]:
        yield self._get_labelled(slices.labels)
        yield from map(self._get_slice, name_slices(slices).items())

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
