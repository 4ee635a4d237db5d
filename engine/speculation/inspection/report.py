"""What an inspection found: which speculation it is, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The engine would not start, would die at a request, or could not accept drafts."""
    WARNING = "warning"
    """It runs, and accepts less, or not as far, as it could."""
    NOTE = "note"
    """Right in most drafts, worth knowing when acceptance disappoints. Not an alarm."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: which, what was found, and what to do about it."""

    rule: str
    severity: Severity
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity} [{self.rule}] {self.found}; {self.advice}"


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """The outcome of ``inspect_draft``.

    ``method`` is what people call it: eagle3.1, eagle3, eagle, mtp, medusa, ngram, suffix,
    draft_model, dflash, ... ``inspected`` is false when the draft's files are not on this machine,
    so that only its settings were checked. ``facts`` are the variant's details for printing.
    """

    method: str
    summary: str
    depth: int | None = None
    """K; None when it is not given or not a number."""
    draft: str | None = None
    inspected: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        return self.of(Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.of(Severity.WARNING)

    @property
    def ok(self) -> bool:
        """Nothing found would keep this draft from working."""
        return not self.errors

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is severity)
