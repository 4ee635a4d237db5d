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

from eaglegate.lab.improve.config import ImproveConfig
from eaglegate.observability.captures.files import list_files, make_cipher, read_keys, read_records
from eaglegate.observability.captures.files import write_records as write_capture
from eaglegate.observability.captures.record import CaptureRecord

NEW, OLD, JUDGE = "tune", "keep", "judge"
"""Folders of a window: new answers, older answers against forgetting, and judging sessions."""


@dataclass
class WindowFacts:
    """Facts about the new traffic."""

    answers: int = 0
    first_arrival: float = 0.0
    """Arrival of the oldest and of the newest request, in Unix time."""
    last_arrival: float = 0.0
    workloads: Counter[str] = field(default_factory=Counter)
    clusters: set[str] = field(default_factory=set)

    def add(self, record: CaptureRecord) -> None:
        count = sum(1 for _ in record.trajectories())
        arrival = record.arrived or 0.0
        self.answers += count
        self.first_arrival = min(self.first_arrival or arrival, arrival)
        self.last_arrival = max(self.last_arrival, arrival)
        self.workloads[record.workload] += count
        self.clusters.add(record.cluster)

    def describe(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "sessions": len(self.clusters),
            "from": self.first_arrival,
            "until": self.last_arrival,
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
        minimum = self._config.window
        return facts.answers >= minimum.answers and len(facts.clusters) >= minimum.sessions

    def freeze(self, folder: Path, since: float, windows: Sequence[Path]) -> dict[str, Any]:
        """Write the window to ``folder`` atomically and describe it. Raises CaptureError and
        OSError.
        """
        staging = folder.with_name(folder.name + ".new")
        shutil.rmtree(staging, ignore_errors=True)
        for name in (NEW, OLD, JUDGE):
            (staging / name).mkdir(parents=True)
        records, facts = self._take_newest(since)
        counts = self._split(records, staging, NEW, "window.jsonl")
        if self._config.reference is not None:
            references = list(self._read(self._config.reference))
            counts.update(self._split(references, staging, OLD, "reference.jsonl"))
        for number, window in enumerate(windows):
            _link(window / NEW / "window.jsonl", staging / OLD / f"earlier-{number}.jsonl")
            _link(window / JUDGE / "window.jsonl", staging / JUDGE / f"earlier-{number}.jsonl")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
        return facts.describe() | {"files": dict(counts), "earlier": len(windows)}

    def _take_newest(self, since: float) -> tuple[list[CaptureRecord], WindowFacts]:
        """Return as much of the newest traffic as the configuration asks for."""
        facts, selection = WindowFacts(), []
        recent_records = sorted(
            self._read_new(since), key=lambda item: item.arrived or 0.0, reverse=True
        )
        for record in recent_records:
            if self.is_enough(facts):
                break
            facts.add(record)
            selection.append(record)
        return selection[::-1], facts

    def _split(
        self, records: Sequence[CaptureRecord], folder: Path, part: str, name: str
    ) -> Counter[str]:
        share = self._config.window.judge_share
        parts: dict[str, list[CaptureRecord]] = {JUDGE: [], part: []}
        for record in records:
            parts[JUDGE if is_judge(record.cluster, share) else part].append(record)
        counts: Counter[str] = Counter()
        for part_name, selection in parts.items():
            if selection:
                path = folder / part_name / name
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                counts[part_name] += write_capture(path, selection, self._cipher)
        return counts

    def _read_new(self, since: float) -> Iterator[CaptureRecord]:
        for file in list_files(self._config.capture):
            if file.stat().st_mtime >= since:
                yield from (
                    record for record in self._read(file) if (record.arrived or 0.0) > since
                )

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
