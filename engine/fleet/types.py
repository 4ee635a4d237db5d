"""Types of the fleet: what an operator may decide, and what operators and metrics see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from eaglegate.engine.speculation.totals import Totals


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Settings of routing. Amounts are tokens."""

    block: int = 64
    """Prompt tokens per block; best a multiple of the workers' own block size."""
    key_blocks: int = 4
    """Leading blocks that decide where a prompt goes which no worker is known to have cached."""
    most_blocks: int = 512
    """Leading blocks of a prompt that are considered."""
    memory_blocks: int = 1 << 16
    """Blocks remembered per worker: about what its prefix cache holds."""
    epsilon: float = 0.25
    """A worker with more than (1 + epsilon) times the mean load is passed over."""
    slack: float = 8192.0
    """Load below which no worker is passed over: waiting costs less than a cold cache."""
    output_weight: float = 1.0
    """Weight of an output token relative to a prompt token."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Settings of circuit breakers. Seconds unless stated otherwise."""

    failures: int = 3
    """Failed requests in a row."""
    backoff_s: float = 1.0
    """Pause before the first probe; doubles with each probe that fails."""
    max_backoff_s: float = 10.0
    jitter: float = 0.5
    """Random fraction of the pause, so that several gateways do not probe in step."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of the workers' maintenance. Seconds unless stated otherwise."""

    start_s: float = 600.0
    """The fleet does not start when no worker serves after this time."""
    poll_s: float = 2.0
    """Pause between two health checks of a worker."""
    ask_s: float = 5.0
    """A worker that does not answer a health check in this time has missed it."""
    missed: int = 3
    """Missed health checks in a row after which the circuit opens and requests move."""
    count_s: float = 15.0
    """Pause between two readings of a worker's own counters."""
    admit_s: float = 60.0
    """A worker that starts or comes back must answer and generate a token in this time."""
    retries: int = 1
    """Other workers to try with a request on which a healthy worker failed."""
    pause_s: float = 0.2
    """Pause before a request returns to a worker it has been to."""
    balance: RoutingSettings = field(default_factory=RoutingSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


class RoutingReason(StrEnum):
    """Why a request went to a worker."""

    SESSION = "session"
    """The worker of its session."""
    PREFIX = "prefix"
    """The worker that knows most of its prompt; of equals, the least loaded one."""
    HASH = "hash"
    """No worker knows its prompt: the first worker by hash."""
    SPILLED = "spilled"
    """The worker it belonged to was overloaded."""
    LEAST = "least"
    """The prompt is shorter than a block: the least loaded worker."""


class WorkerState(StrEnum):
    """State of a worker."""

    SERVING = "serving"
    PROBING = "probing"
    """Starting or coming back: it has not passed its probe yet."""
    OPEN = "open"
    """The worker's circuit is open: it gets no requests for a while."""
    HELD = "held"
    """A canary rolled it back: it serves and gets no requests until it is released."""
    DRAINING = "draining"
    """Removed from the sources: it finishes its in-flight requests."""


class FindingKind(StrEnum):
    """The part of a worker that a finding is about."""

    ACCEPTANCE = "acceptance"
    SAMPLING = "sampling"
    REASONING = "reasoning"
    GRAMMAR = "grammar"
    TOOLS = "tools"
    TEMPLATE = "template"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class WorkerFinding:
    """A fault of a worker that serves all the same."""

    kind: FindingKind
    text: str
    """One sentence: the fault, and the flag that mends it."""


@dataclass(slots=True)
class WorkerCounters:
    """Requests that were sent to a worker."""

    reasons: Counter[RoutingReason] = field(default_factory=Counter)
    """Number of requests by routing reason."""
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
    """Worker's own speculation counters; None where it reports none."""
    findings: tuple[WorkerFinding, ...] = ()
    """Faults that the start-up probe found in the worker."""
