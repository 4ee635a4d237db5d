"""Inspection data: what a rule sees, what it reports, and the report of all findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.speculation.inspection.checkpoint import Checkpoint
from engine.speculation.inspection.configs import DraftConfig, TargetConfig
from engine.speculation.inspection.weights import TensorEntry


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


@dataclass(frozen=True, slots=True)
class InspectionCase:
    """One draft for one target. Rules about files run only when ``checkpoint`` is there."""

    settings: Mapping[str, Any]
    method: str
    """What vLLM takes the settings for."""
    tensor_parallel_size: int
    max_model_len: int | None
    target: TargetConfig | None
    checkpoint: Checkpoint | None
    draft: DraftConfig
    kind: str | None
    """What the draft's files look like; None when they are not known."""

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        return self.checkpoint.tensors if self.checkpoint else {}

    @property
    def served_len(self) -> int | None:
        """Positions a request may use, as far as it is known before start."""
        return self.max_model_len or (self.target.max_positions if self.target else None)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        tensor = self.tensors.get(name)
        return tensor.shape if tensor else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding before the rule's name is put on it."""

    severity: Severity
    found: str
    advice: str


def error(found: str, advice: str) -> Verdict:
    return Verdict(Severity.ERROR, found, advice)


def warning(found: str, advice: str) -> Verdict:
    return Verdict(Severity.WARNING, found, advice)


def note(found: str, advice: str) -> Verdict:
    return Verdict(Severity.NOTE, found, advice)


@dataclass(frozen=True, slots=True)
class InspectionRule:
    """A named check with the one-line statement it enforces."""

    name: str
    says: str
    check: Callable[[InspectionCase], Iterable[Verdict]]
