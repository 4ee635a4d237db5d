"""What was told and not yet counted, put together by slices so that counting is done in bulk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from observability.facts import DecodeProgress, PhaseShares, RequestRecord, SliceNames, sum_shares
from observability.labels import Labels

LIMIT = 256
"""Entries after which counting should not wait any longer: it holds up the event loop."""


class PendingMetrics:
    """Collects; whoever counts takes what is there and starts a new one."""

    def __init__(self) -> None:
        self._progress: dict[SliceNames, tuple[PhaseShares, list[float]]] = {}
        self._records: defaultdict[SliceNames, list[RequestRecord]] = defaultdict(list)
        self._size = 0

    def add_progress(self, slices: SliceNames, shares: PhaseShares, gaps: list[float]) -> None:
        self._size += 1
        known = self._progress.get(slices)
        if known is None:
            self._progress[slices] = shares, gaps
            return
        for phase, share in shares.items():
            mine = known[0].get(phase)
            known[0][phase] = share if mine is None else mine + share
        known[1].extend(gaps)

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
