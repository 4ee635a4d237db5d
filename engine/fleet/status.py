"""Worker state, counters and status, as operators and metrics see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.fleet.routing import RoutingReason
from engine.speculation.accounting import Totals


class WorkerState(StrEnum):
    """What a worker does."""

    SERVING = "serving"
    PROBING = "probing"
    """Starting or coming back: it has not passed its probe yet."""
    OPEN = "open"
    """Its circuit is open: it gets no requests for a while."""
    DRAINING = "draining"
    """Removed from the sources: it finishes its in-flight requests."""


@dataclass(slots=True)
class WorkerCounters:
    """Requests that were sent to a worker."""

    reasons: Counter[RoutingReason] = field(default_factory=Counter)
    """How many, by routing reason."""
    tokens: int = 0
    retried: int = 0
    """Moved to another worker before their first token."""
    continued: int = 0
    """Moved to another worker after their first token."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A snapshot; counts are since the worker joined, ``counted`` since its process began."""

    name: str
    state: WorkerState
    reason: str
    """Why it does not serve; empty when it does."""
    running: int
    outstanding: float
    """Tokens it has yet to process (``engine/fleet/routing.py``)."""
    requests: Mapping[str, int]
    """Requests sent to it, by ``RoutingReason``."""
    tokens: int
    retried: int
    continued: int
    openings: int
    counted: Totals | None
    """Its own speculation counters; None where it reports none."""
