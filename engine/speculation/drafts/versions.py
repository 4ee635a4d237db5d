"""Versions of the draft, and their exchange in a running engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DraftVersion:
    """One set of draft weights."""

    fingerprint: str
    """Fingerprint of config.json and the weights, from ``fingerprint_draft``."""
    source: str
    """The folder that an operator named."""
    path: str
    """The folder it is loaded from: a copy, or the source itself."""
    method: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class DraftSwap:
    """One exchange of the draft. ``pause_s`` is the time in which the engine made no step."""

    at: float
    kind: str
    """swap, trial, rollback, reload or restart"""
    before: str
    after: str
    pause_s: float = 0.0
    took_s: float = 0.0
    """Seconds from the call to the last worker's answer, inspection and copy included."""


DraftListener = Callable[[DraftVersion, DraftSwap], None]


class SwapsDrafts(Protocol):
    """An engine whose draft can be exchanged while it runs."""

    async def swap_draft(self, path: str, running_draft: str) -> float:
        """Load the draft in ``path`` in place of ``running_draft``. Return the pause in seconds.

        Raises EngineError; then ``running_draft`` still serves, or the engine is lost.
        """
        ...
