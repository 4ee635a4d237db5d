"""A day of history in the process: totals of every slice in slots of five minutes.

It is bounded to ``SLOTS`` slots with at most ``MOST_SLICES`` slices each, about 0.6 kB per slice,
and ``MOST_EVENTS`` events. It holds sums only, no request and no text, and ends with the process.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from eaglegate.engine.totals import Totals
from eaglegate.observability.facts import (
    DepthHeld,
    DraftSwapped,
    EngineLost,
    EngineStarted,
    RequestInterrupted,
    RequestRefused,
)
from eaglegate.observability.labels import Labels
from eaglegate.observability.metrics.base import MetricGroup, MetricScope
from eaglegate.observability.observation import DecodeProgress, RequestRecord
from eaglegate.observability.windows import (
    ALL,
    FAILED,
    PHASE,
    SliceKey,
    WindowSums,
    name_slices,
)

SLOT_S = 300
SLOTS = 288
"""Number of slots in a day."""
MOST_SLICES = 64
MOST_EVENTS = 200
WHOLE: SliceKey = (ALL, "")
Row = dict[str, Any]


@dataclass(slots=True)
class Slot:
    """Totals of one slot."""

    index: int
    """The slot's number: Unix time / ``SLOT_S``."""
    slices: dict[SliceKey, WindowSums] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """Counts by name: ``ended``, ``refused``, ``tools``, ``recovered``."""
    queued: int = 0
    """Most requests seen waiting at once."""
    running: int = 0

    def add(self, key: SliceKey, sums: WindowSums) -> None:
        total = self.slices.get(key)
        if total is None and len(self.slices) >= MOST_SLICES:
            return
        self.slices[key] = sums if total is None else total + sums

    def count(self, kind: str, name: str, number: int = 1) -> None:
        self.counts.setdefault(kind, Counter())[name] += number


class DayHistory(MetricGroup):
    """History of the day. It gets the reports of a metric group and declares no metrics."""

    def __init__(self, scope: MetricScope) -> None:
        self.wall_clock = time.time
        self._slots: deque[Slot] = deque(maxlen=SLOTS)
        self._events: deque[Row] = deque(maxlen=MOST_EVENTS)
        super().__init__(scope)

    def declare(self) -> None:
        """Declare no metrics, because the day is shown on the page only."""
        self.on(RequestRefused, lambda fact: self._open_slot().count("refused", fact.code))
        self.on(RequestInterrupted, lambda fact: self._open_slot().count("recovered", fact.outcome))
        self.on(EngineStarted, self._add_start)
        self.on(EngineLost, lambda fact: self._add_event("engine lost", fact.engine, fact.cause))
        self.on(DepthHeld, self._add_hold)
        self.on(DraftSwapped, self._add_swap)

    def record_progress(self, progress: DecodeProgress) -> None:
        slot = self._open_slot()
        for key in name_slices(progress.slices).items():
            slot.add(key, WindowSums.of(progress.total))
        for phase, share in progress.shares.items():
            slot.add((PHASE, phase.value), WindowSums.of(share))

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:  # noqa: ARG002
        slot = self._open_slot()
        for record in records:
            wait = record.ttft
            sums = WindowSums(
                1, failed=record.ending in FAILED, started=wait is not None, waited_s=wait or 0.0
            )
            for key in name_slices(record.slices).items():
                slot.add(key, sums)
            slot.count("ended", record.ending.value)
            for choice in record.choices:
                for outcome in choice.tools:
                    slot.count("tools", outcome.value)

    def _add_start(self, fact: EngineStarted) -> None:
        detail = f"{fact.info.model}, in {fact.seconds:.1f} s"
        self._add_event("engine started", fact.engine, detail)

    def _add_hold(self, fact: DepthHeld) -> None:
        name = "draft depth held off" if fact.is_held else "draft depth released"
        self._add_event(name, fact.engine, f"{fact.hold.method}, depth {fact.hold.depth}")

    def _add_swap(self, fact: DraftSwapped) -> None:
        swap = fact.swap
        self._add_event("draft " + swap.kind, swap.after[:16], f"in place of {swap.before[:16]}")

    def _add_event(self, kind: str, name: str, detail: str) -> None:
        self._events.append({"at": self.wall_clock(), "what": kind, "name": name, "more": detail})

    def _open_slot(self) -> Slot:
        slot_index = int(self.wall_clock() / SLOT_S)
        if not self._slots or self._slots[-1].index != slot_index:
            self._slots.append(Slot(slot_index))
        slot, queue = self._slots[-1], self.scope.admission()
        if queue is not None:
            slot.queued = max(slot.queued, queue.queued)
            slot.running = max(slot.running, queue.running)
        return slot

    def describe(self, kind: str = ALL, name: str = "") -> Row:
        """Describe the day of one slice, oldest slot first, and the counts and events of all
        slices."""
        key, now = (kind, name), self.wall_clock()
        return {
            "slot_s": SLOT_S,
            "now": now,
            "kind": kind,
            "name": name,
            "slots": [_describe_slot(slot, key) for slot in self._slots if key in slot.slices],
            "counts": {
                count_kind: dict(sum_counts(self._slots, count_kind))
                for count_kind in ("ended", "refused", "tools", "recovered")
            },
            "events": list(self._events),
        }


def sum_counts(slots: Iterable[Slot], kind: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for slot in slots:
        counts.update(slot.counts.get(kind, {}))
    return counts


def _describe_slot(slot: Slot, key: SliceKey) -> Row:
    sums = slot.slices[key]
    totals = sums.totals
    row: Row = {
        "at": slot.index * SLOT_S,
        "requests": sums.requests,
        "tokens": totals.tokens,
        "tokens_per_s": totals.tokens / SLOT_S,
        "acceptance_at": totals.conditional_acceptance,
        "steps_by_depth": count_depths(totals),
    }
    row |= sums.describe()
    if key == WHOLE:
        row |= {"queued": slot.queued, "running": slot.running}
        row |= {kind: dict(counts) for kind, counts in slot.counts.items()}
    return row


def count_depths(totals: Totals) -> list[int]:
    """Return the numbers of decode steps that drafted 0, 1, ... tokens."""
    num_reaching = [totals.decode_steps, *totals.proposed_at, 0]
    return [count - deeper_count for count, deeper_count in pairwise(num_reaching)]
