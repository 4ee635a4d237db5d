"""A diagnosis: the cause of a fall of acceptance, and the applied cures with their effects."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

log = logging.getLogger(__name__)


class Cause(StrEnum):
    """Cause of a fall of acceptance."""

    CACHE = "cached blocks"
    WEIGHTS = "draft weights"
    TRAFFIC = "traffic"
    UNKNOWN = "unknown"
    """No earlier run can be compared, because there is none or its text was different."""


class Cure(StrEnum):
    """Cures, smallest first."""

    DROP_PREFIX = "drop prefix"
    DROP_CACHE = "drop prefix cache"
    RELOAD = "reload draft"
    RESTART = "restart engine"


@dataclass(frozen=True, slots=True)
class Treatment:
    """One cure and its effect, as relative falls of the acceptance length before and after."""

    cure: Cure
    before: float
    after: float
    took_s: float
    cured: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a suspicion, without any text. ``at`` is Unix time in seconds."""

    at: float
    draft: str
    prefix: str
    """Hash of the prefix's first tokens; empty for all prefixes together."""
    engine_age_s: float
    cause: Cause
    fall: float
    """Relative fall of the acceptance length in the trials."""
    trials: int
    answers: int
    """Number of answers from the first sign to the suspicion."""
    treatments: tuple[Treatment, ...] = ()

    @property
    def outcome(self) -> str:
        if self.cause in (Cause.TRAFFIC, Cause.UNKNOWN):
            return "nothing done"
        if not self.treatments:
            return "not treated"
        return "cured" if self.treatments[-1].cured else "not cured"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome}


def log_diagnosis(diagnosis: Diagnosis) -> None:
    """Log the cause, the fall and the cures in one line for operators."""
    cures = "; ".join(
        f"{treatment.cure}: fall {treatment.before:.1%} -> {treatment.after:.1%} "
        f"in {treatment.took_s:.1f} s"
        for treatment in diagnosis.treatments
    )
    log.log(
        logging.INFO if diagnosis.cause is Cause.TRAFFIC else logging.WARNING,
        "acceptance of draft %s fell (prefix %s, engine age %.0f s): cause: %s "
        "(acceptance length %.1f%% lower in %d trials); %s%s",
        diagnosis.draft or "-", diagnosis.prefix or "all", diagnosis.engine_age_s, diagnosis.cause,
        100 * diagnosis.fall, diagnosis.trials, diagnosis.outcome, f": {cures}" if cures else "",
    )  # fmt: skip
