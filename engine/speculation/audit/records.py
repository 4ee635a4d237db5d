"""Answers that wait for their audit, and what audits find."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from eaglegate.engine.speculation.audit.evidence import AuditOutcome
from eaglegate.engine.types import EngineRequest
from eaglegate.text.events import FinishReason


@dataclass(slots=True)
class FinishedAnswer:
    """An answer that waits for its audit."""

    request: EngineRequest
    token_ids: tuple[int, ...]
    finish: FinishReason | None
    stopped: bool
    """Its last token is one that ends it."""
    depth: int
    """The most drafts that one of its steps verified."""
    draft: str
    ended: float
    """The auditor's clock at its end."""
    may_keep: bool = True
    """Whether a violation's file may hold its tokens."""

    @property
    def ends_its_grammar(self) -> bool:
        """Whether nothing but the end of its grammar can have ended it: no token or repetition that
        the client had named.
        """
        sampling = self.request.sampling
        named = sampling.repetition is not None or self.token_ids[-1] in sampling.stop_token_ids
        return self.finish is FinishReason.STOP and not named

    @property
    def text_tokens(self) -> tuple[int, ...]:
        return self.token_ids[:-1] if self.stopped else self.token_ids


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What an audit found, without any text. ``at``: Unix time in seconds."""

    request: str
    workload: str
    choosing: str
    """greedy, seeded, sampled or grammar"""
    draft: str
    depth: int
    outcome: AuditOutcome
    detail: str
    at: float
    took_s: float
    tokens: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class AuditObserver(Protocol):
    """Told of audits."""

    def record_audit(self, record: AuditRecord) -> None: ...

    def record_audit_drop(self, reason: str) -> None:
        """An answer was selected and not audited: queue, idle, length, rules or error."""
        ...


class EvidenceWriter(Protocol):
    """Writes what shows a violation again; returns the file's name, empty where there is none."""

    def __call__(self, answer: FinishedAnswer, record: AuditRecord) -> str: ...


def write_nothing(answer: FinishedAnswer, record: AuditRecord) -> str:  # noqa: ARG001
    """The ``EvidenceWriter`` of gateways without a folder for evidence."""
    return ""
