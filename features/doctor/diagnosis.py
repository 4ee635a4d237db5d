"""A diagnosis: the cause of a fall of acceptance."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

log = logging.getLogger(__name__)

RUNBOOK = "another engine ends the fault: docs/doctor.md#what-to-do"


class Cause(StrEnum):
    """Cause of a fall of acceptance."""

    CACHE = "cached blocks"
    WEIGHTS = "draft weights"
    TRAFFIC = "traffic"
    UNKNOWN = "unknown"
    """No earlier run can be compared, because there is none or its text was different."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a suspicion, without any text. ``at`` is Unix time in seconds."""

    at: float
    draft: str
    prefix: str
    """Hash of the prefix's first tokens; empty for all prefixes together."""
    cause: Cause
    fall: float
    """Relative fall of the acceptance length in the trials."""
    trials: int
    answers: int
    """Number of answers from the first sign to the suspicion."""

    @property
    def is_fault(self) -> bool:
        return self.cause in (Cause.CACHE, Cause.WEIGHTS)

    @property
    def outcome(self) -> str:
        return "not treated" if self.is_fault else "nothing done"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome}


def log_diagnosis(diagnosis: Diagnosis) -> None:
    """Log the cause and the fall in one line for operators."""
    log.log(
        logging.INFO if diagnosis.cause is Cause.TRAFFIC else logging.WARNING,
        "acceptance of draft %s fell (prefix %s): cause: %s (acceptance length %.1f%% lower in %d "
        "trials)%s",
        diagnosis.draft or "-", diagnosis.prefix or "all", diagnosis.cause, 100 * diagnosis.fall,
        diagnosis.trials, f"; {RUNBOOK}" if diagnosis.is_fault else "",
    )  # fmt: skip
