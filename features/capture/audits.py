"""Audits of captured requests, in separate files next to the records.

An audit may end after its request's record was written. Each audit is therefore a line of its own
that names the record by ``id``. The files are named ``audits-TIME-PID-N.jsonl``, because readers of
traces such as AIPerf accept only requests. A line contains neither text nor token ids.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson
from cryptography.fernet import MultiFernet

from eaglegate.engine.events import RequestFacts
from eaglegate.features.capture.files import CaptureFolder, CaptureWriter
from eaglegate.features.capture.redaction import Redactor, SaltedHashes
from eaglegate.observability.captures.files import AUDITS, Skip, list_files, parse_lines
from eaglegate.observability.captures.record import (
    VERSION,
    CaptureError,
    DamagedRecord,
    check_version,
)
from eaglegate.observability.facts import AnswerAudited

AUDIT_BYTES = 1024
"""Approximate memory of an audit that waits to be written, in bytes."""
REMEMBERED = 4096
"""Captured choices whose audits can still be written; older choices are forgotten."""


@dataclass(frozen=True, slots=True)
class CapturedAudit:
    """The verdict on one choice of a captured request."""

    id: str
    """``CaptureRecord.id`` of the audited request."""
    session: str
    """``CaptureRecord.session``, the salted hash."""
    choice: int
    """Index of the choice in the answer."""
    outcome: str
    """Verdict: lossless, near_tie or violated."""
    choosing: str
    """How the answer was chosen: greedy, seeded, sampled or grammar."""
    detail: str
    depth: int
    """The largest number of drafts that one of the choice's steps verified."""
    draft: str
    tokens: int
    at: float
    """Unix time at which the audit ended."""
    key: str | None = None
    """The public name of the API key."""


_FIELDS = tuple(item.name for item in fields(CapturedAudit))


def format_audit(audit: CapturedAudit) -> bytes:
    """Return the audit as one line, without the line break."""
    return orjson.dumps({"version": VERSION, **asdict(audit)})


def parse_audit(line: bytes) -> CapturedAudit:
    """Parse one line. Raises DamagedRecord, or CaptureError for a newer version of the format."""
    try:
        row: Mapping[str, Any] = orjson.loads(line)
        check_version(row)
        return CapturedAudit(**{name: row[name] for name in _FIELDS if name in row})
    except CaptureError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedRecord(f"not an audit: {error}") from None


def read_audits(
    path: Path, cipher: MultiFernet | None = None, skip: Skip = lambda _: None
) -> Iterator[CapturedAudit]:
    """Read the audits of a capture folder, or of one file. See ``read_records``."""
    for file in list_files(path, AUDITS):
        yield from parse_lines(file, cipher, skip, parse_audit)


def name_request(request: str, redactor: Redactor | None, hashes: SaltedHashes) -> str:
    """Return the request's name in a capture. Clients may choose the name, so it is redacted like
    text.
    """
    return str(redactor.redact(request)) if redactor else hashes.hash_text(request)


class AuditCapture:
    """Writes the audits of captured requests on its own thread."""

    def __init__(
        self,
        folder: CaptureFolder,
        hashes: SaltedHashes,
        redactor: Redactor | None,
        cipher: MultiFernet | None,
    ) -> None:
        self._hashes, self._cipher = hashes, cipher
        self._redactor = copy(redactor)  # stateful, and the records' thread uses the original
        self._captured: OrderedDict[str, tuple[RequestFacts, str]] = OrderedDict()
        """Facts and session of each captured request, by the engine's name of each choice."""
        self._writer = CaptureWriter(folder.open_sibling(AUDITS), self._format)

    def expect(self, facts: RequestFacts, session: str) -> None:
        """Register a captured request, so that its audits are written."""
        facts_without_text = replace(facts, messages=(), tools=())
        self._captured |= dict.fromkeys(facts.sequences, (facts_without_text, session))
        while len(self._captured) > REMEMBERED:
            self._captured.popitem(last=False)

    def record(self, audit: AnswerAudited) -> None:
        """Queue a finished audit if its request was captured. Never waits."""
        if (context := self._captured.pop(audit.sequence, None)) is not None:
            self._writer.put((audit, *context), AUDIT_BYTES)

    def close(self) -> None:
        self._writer.close()

    def _format(self, item: tuple[AnswerAudited, RequestFacts, str]) -> bytes:
        audit, facts, session = item
        result = audit.result
        if self._redactor is not None:
            self._redactor.begin()
        captured_audit = CapturedAudit(
            id=name_request(facts.id, self._redactor, self._hashes),
            session=self._hashes.hash_text(session),
            choice=facts.sequences.index(audit.sequence),
            outcome=audit.outcome,
            choosing=result["choosing"],
            detail=result["detail"],
            depth=result["depth"],
            draft=result["draft"],
            tokens=result["tokens"],
            at=round(result["at"], 6),
            key=facts.key,
        )
        line = format_audit(captured_audit)
        return line if self._cipher is None else self._cipher.encrypt(line)
