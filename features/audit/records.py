"""Answers that wait for their audit, and the results of audits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from eaglegate.engine.types import Drafter, EngineRequest
from eaglegate.features.audit.evidence import AuditOutcome
from eaglegate.text.events import FinishReason


@dataclass(slots=True)
class FinishedAnswer:
    """An answer that waits for its audit."""

    request: EngineRequest
    token_ids: tuple[int, ...]
    finish: FinishReason | None
    stopped: bool
    """True if the last token is a stop token."""
    depth: int
    """Most tokens that a step of the answer verified, drafts or a lookup."""
    draft: str
    ended: float
    """Time of the auditor's clock at the end of the answer."""
    may_keep: bool = True
    """True if an evidence file may hold the answer's tokens."""
    drafters: frozenset[Drafter] = frozenset()
    """Sources of the tokens that its steps verified."""
    worker: str = ""
    """The worker that made the answer; empty if there are none, or if several did."""

    @property
    def slice_key(self) -> tuple[str, str, str]:
        """The sequential test that a sampled answer belongs to. A worker has one for all keys,
        because no request can make sound tokens look wrong."""
        if self.worker:
            return self.worker, "", ""
        return self.draft, self.request.workload, self.request.tenant

    @property
    def drafter(self) -> str:
        """The sources in one word: draft, lookup, both or none."""
        if len(self.drafters) == 1:
            return next(iter(self.drafters)).value
        return "both" if self.drafters else "none"

    @property
    def ends_its_grammar(self) -> bool:
        """True if only the end of its grammar can have ended the answer, not a token or repetition
        that the client named."""
        sampling = self.request.sampling
        client_stop = (
            sampling.repetition is not None or self.token_ids[-1] in sampling.stop_token_ids
        )
        return self.finish is FinishReason.STOP and not client_stop

    @property
    def text_tokens(self) -> tuple[int, ...]:
        return self.token_ids[:-1] if self.stopped else self.token_ids


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Result of an audit, without any text. ``at`` is Unix time in seconds."""

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
    drafter: str = "draft"
    """Source of the tokens that were verified: draft, lookup, both or none."""
    worker: str = ""
    """The worker that made the answer; empty for an engine in this process."""
    scorer: str = ""
    """The worker that scored it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


EvidenceWriter = Callable[[FinishedAnswer, AuditRecord], str]
"""Writer of evidence. Returns the file's name; empty if there is none."""


def write_nothing(answer: FinishedAnswer, record: AuditRecord) -> str:  # noqa: ARG001
    """Return no file: the ``EvidenceWriter`` of gateways without a folder for evidence."""
    return ""
