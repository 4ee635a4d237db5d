"""Outcomes of a canary, and the reasons why one does not start."""

from __future__ import annotations

from enum import StrEnum

STOPPED, FAILED = "stopped", "failed"
"""Outcomes of a canary that ended without a verdict."""


class CanaryVerdict(StrEnum):
    """Verdict of a canary's evidence."""

    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    UNDECIDED = "not enough data"


class CanaryBusy(Exception):
    """Another canary is running."""


class ChangeRefused(Exception):
    """The change cannot be tried. The message says why."""
