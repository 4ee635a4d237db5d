"""The ledger: every candidate draft with its data, parent, results and verdict.

The ledger is one SQLite file, so it survives crashes of any process. A candidate is a row. Its
stage is the next stage to run, and is written only after the previous stage is complete.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS candidates (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at REAL NOT NULL,
    ended_at REAL,
    stage TEXT NOT NULL,
    verdict TEXT,
    reason TEXT NOT NULL DEFAULT '',
    given TEXT,
    forced INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    fingerprint TEXT NOT NULL DEFAULT '',
    parent TEXT NOT NULL DEFAULT '{}',
    data TEXT NOT NULL DEFAULT '{}',
    offline TEXT NOT NULL DEFAULT '{}',
    live TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS events (
    candidate INTEGER NOT NULL REFERENCES candidates (id),
    at REAL NOT NULL,
    stage TEXT NOT NULL,
    text TEXT NOT NULL
);
"""


class Stage(StrEnum):
    """Next stage of a candidate."""

    COLLECT = "collect"
    TUNE = "tune"
    COMPARE = "compare"
    CANARY = "canary"
    DONE = "done"


class CandidateVerdict(StrEnum):
    """Verdict on a candidate."""

    PROMOTED = "promoted"
    REFUSED = "refused"
    """Refused by the comparison on captured traffic."""
    ROLLED_BACK = "rolled back"
    UNDECIDED = "undecided"
    """The canary ended without enough data, or another draft was promoted in the meantime."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One draft in the loop."""

    id: int
    created_at: float
    ended_at: float | None
    stage: Stage
    verdict: CandidateVerdict | None
    reason: str
    given: str | None
    """Folder of a draft that an operator queued, or None for a tuned draft."""
    forced: bool
    """True if the comparison is recorded but does not stop the candidate."""
    attempts: int
    """Number of failures of the current stage."""
    fingerprint: str
    parent: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    offline: Mapping[str, Any] = field(default_factory=dict)
    live: Mapping[str, Any] = field(default_factory=dict)


_JSON = ("parent", "data", "offline", "live")


class Ledger:
    """Store of candidates, which several processes may use. Its methods raise sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with self._open() as database:
            database.executescript(SCHEMA)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for one transaction."""
        with closing(sqlite3.connect(self._path, timeout=30)) as database, database:
            database.row_factory = sqlite3.Row
            yield database

    def add(self, draft: str | None = None, forced: bool = False) -> Candidate:
        """Add a candidate, tuned by the loop or given by an operator."""
        with self._open() as database:
            cursor = database.execute(
                "INSERT INTO candidates (created_at, stage, given, forced) VALUES (?, ?, ?, ?)",
                (time.time(), Stage.COLLECT, draft, forced),
            )
            number = cursor.lastrowid
        assert number is not None
        return self.read(number)

    def read(self, number: int) -> Candidate:
        return next(candidate for candidate in self.list_candidates() if candidate.id == number)

    def list_candidates(self) -> list[Candidate]:
        """Return all candidates, oldest first."""
        with self._open() as database:
            rows = database.execute("SELECT * FROM candidates ORDER BY id").fetchall()
        return [_parse_row(row) for row in rows]

    def find_open(self) -> Candidate | None:
        """Return the oldest candidate without a verdict."""
        return next(
            (candidate for candidate in self.list_candidates() if candidate.verdict is None), None
        )

    def update(self, candidate: Candidate, text: str = "", **values: Any) -> Candidate:
        """Write these fields, and an event if there is a text."""
        columns = {n: json.dumps(v) if n in _JSON else v for n, v in values.items()}
        with self._open() as database:
            if columns:
                names = ", ".join(f"{name} = ?" for name in columns)
                database.execute(
                    f"UPDATE candidates SET {names} WHERE id = ?", (*columns.values(), candidate.id)
                )
            if text:
                event = (candidate.id, time.time(), candidate.stage, text)
                database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", event)
        return self.read(candidate.id)

    def advance(self, candidate: Candidate, stage: Stage, text: str, **values: Any) -> Candidate:
        return self.update(candidate, text, stage=stage, attempts=0, **values)

    def close(
        self, candidate: Candidate, verdict: CandidateVerdict, reason: str, **values: Any
    ) -> Candidate:
        text = f"{verdict}: {reason}"
        fields = {
            "stage": Stage.DONE,
            "verdict": verdict,
            "reason": reason,
            "ended_at": time.time(),
        }
        return self.update(candidate, text, **fields, **values)

    def list_events(self, number: int) -> list[dict[str, Any]]:
        with self._open() as database:
            rows = database.execute(
                "SELECT at, stage, text FROM events WHERE candidate = ? ORDER BY rowid", (number,)
            )
            return [dict(row) for row in rows]


def _parse_row(row: sqlite3.Row) -> Candidate:
    values = dict(row)
    return Candidate(
        **{
            **values,
            **{name: json.loads(values[name]) for name in _JSON},
            "stage": Stage(values["stage"]),
            "verdict": CandidateVerdict(values["verdict"]) if values["verdict"] else None,
            "forced": bool(values["forced"]),
        }
    )
