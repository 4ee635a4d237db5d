"""What a rule gets to see, what it says, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.speculation.inspection.checkpoint import Checkpoint
from engine.speculation.inspection.draft import DraftConfig
from engine.speculation.inspection.report import Severity
from engine.speculation.inspection.safetensors_header import TensorEntry
from engine.speculation.inspection.target import TargetConfig


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
