"""Windows of captured traffic, which tune and judge a candidate.

By its hash, a session belongs to training or to judging in every window, so that no candidate is
judged by data that it or an ancestor was trained on. The files of a window are copies, because the
capture may delete its files while a candidate is in progress.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.fernet import MultiFernet

from eaglegate.features.capture.files import list_files, make_cipher, read_keys, read_records
from eaglegate.features.capture.files import write_records as write_capture
from eaglegate.features.capture.record import CaptureRecord
from eaglegate.lab.improve.config import ImproveConfig

NEW, OLD, JUDGE = "tune", "keep", "judge"
"""Folders of a window: new answers, older answers against forgetting, and judging sessions."""


@dataclass
class WindowFacts:
    """Facts about the new traffic."""

    answers: int = 0
    first: float = 0.0
    """Arrival of the oldest and of the newest request, in Unix time."""
    last: float = 0.0
    workloads: Counter[str] = field(default_factory=Counter)
    clusters: set[str] = field(default_factory=set)

    def add(self, record: CaptureRecord) -> None:
        count = sum(1 for _ in record.trajectories())
        arrived = record.arrived or 0.0
        self.answers += count
        self.first = min(self.first or arrived, arrived)
        self.last = max(self.last, arrived)
        self.workloads[record.workload] += count
        self.clusters.add(record.cluster)

    def describe(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "sessions": len(self.clusters),
            "from": self.first,
            "until": self.last,
            "workloads": dict(self.workloads),
        }


class TrafficWindows:
    """Finder of windows in the capture, which also freezes them."""

    def __init__(self, config: ImproveConfig) -> None:
        self._config = config

    @property
    def _cipher(self) -> MultiFernet | None:
        path = self._config.key_file
        return make_cipher(read_keys(path) if path else [])

    def count(self, since: float) -> WindowFacts:
        """Count new traffic. Raises CaptureError and OSError."""
        facts = WindowFacts()
        for record in self._read_new(since):
            facts.add(record)
        return facts

    def is_enough(self, facts: WindowFacts) -> bool:
        wanted = self._config.window
        return facts.answers >= wanted.answers and len(facts.clusters) >= wanted.sessions

    def freeze(self, folder: Path, since: float, earlier: Sequence[Path]) -> dict[str, Any]:
        """Write the window to ``folder`` atomically and describe it. Raises CaptureError and
        OSError.
        """
        fresh = folder.with_name(folder.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        for name in (NEW, OLD, JUDGE):
            (fresh / name).mkdir(parents=True)
        records, facts = self._take_newest(since)
        written = self._split(records, fresh, NEW, "window.jsonl")
        if self._config.reference is not None:
            known = list(self._read(self._config.reference))
            written.update(self._split(known, fresh, OLD, "reference.jsonl"))
        for number, window in enumerate(earlier):
            _link(window / NEW / "window.jsonl", fresh / OLD / f"earlier-{number}.jsonl")
            _link(window / JUDGE / "window.jsonl", fresh / JUDGE / f"earlier-{number}.jsonl")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
        return facts.describe() | {"files": dict(written), "earlier": len(earlier)}

    def _take_newest(self, since: float) -> tuple[list[CaptureRecord], WindowFacts]:
        """Return as much of the newest traffic as the configuration asks for."""
        facts, taken = WindowFacts(), []
        arrived = sorted(self._read_new(since), key=lambda one: one.arrived or 0.0, reverse=True)
        for record in arrived:
            if self.is_enough(facts):
                break
            facts.add(record)
            taken.append(record)
        return taken[::-1], facts

    def _split(
        self, records: Sequence[CaptureRecord], folder: Path, part: str, name: str
    ) -> Counter[str]:
        share = self._config.window.judge_share
        judges = [one for one in records if is_judge(one.cluster, share)]
        others = [one for one in records if not is_judge(one.cluster, share)]
        counts: Counter[str] = Counter()
        for where, chosen in ((JUDGE, judges), (part, others)):
            if chosen:
                path = folder / where / name
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                counts[where] += write_capture(path, chosen, self._cipher)
        return counts

    def _read_new(self, since: float) -> Iterator[CaptureRecord]:
        for file in list_files(self._config.capture):
            if file.stat().st_mtime >= since:
                yield from (one for one in self._read(file) if (one.arrived or 0.0) > since)

    def _read(self, path: Path) -> Iterator[CaptureRecord]:
        if path.is_file() and not path.stat().st_size:
            return
        for record in read_records(path, self._cipher):
            if any(True for _ in record.trajectories()):
                yield record


def is_judge(cluster: str, share: float) -> bool:
    return int(sha256(cluster.encode()).hexdigest()[:8], 16) < share * 2**32


def _link(source: Path, goal: Path) -> None:
    if source.exists():
        os.link(source, goal)
