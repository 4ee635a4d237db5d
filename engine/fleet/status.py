"""One worker as people and metrics see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.fleet.worker import WorkerState
from engine.speculation.accounting import Totals


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A snapshot; counts are since it joined, ``counted`` since its process began."""

    name: str
    state: WorkerState
    reason: str
    """Why it does not serve; empty when it does."""
    running: int
    outstanding: float
    """Tokens it has before it (``engine/fleet/load.py``)."""
    requests: Mapping[str, int]
    """Given to it, by what decided so (``engine.fleet.routing.RoutingReason``)."""
    tokens: int
    retried: int
    continued: int
    openings: int
    counted: Totals | None
    """What it says itself of its speculation; None where it says nothing."""
