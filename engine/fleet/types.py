"""Types of the fleet: its settings, and the status that operators and metrics see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from eaglegate.engine.totals import Totals


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Settings of routing. Amounts are tokens."""

    block: int = 64
    """Prompt tokens per block; best a multiple of the workers' own block size."""
    key_blocks: int = 4
    """Leading blocks that decide the worker of a prompt that no worker is known to have cached."""
    most_blocks: int = 512
    """Leading blocks of a prompt that routing considers."""
    memory_blocks: int = 1 << 16
    """Blocks remembered per worker, about as many as its prefix cache holds."""
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
    """Failed requests in a row that open the circuit."""
    backoff_s: float = 1.0
    """Pause before the first probe; doubles with each probe that fails."""
    max_backoff_s: float = 10.0
    jitter: float = 0.5
    """Random fraction of the pause, so that several gateways do not probe in step."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of the workers' maintenance. Seconds unless stated otherwise."""

    start_s: float = 600.0
    """The fleet fails to start if no worker serves after this time."""
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
    """Pause before a request returns to a worker that it has already been sent to."""
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
    """The request's preferred worker was overloaded."""
    LEAST = "least"
    """The prompt is shorter than a block: the least loaded worker."""


class WorkerState(StrEnum):
    """State of a worker."""

    SERVING = "serving"
    PROBING = "probing"
    """The worker starts or comes back, and has not passed its probe yet."""
    OPEN = "open"
    """The worker's circuit is open: it gets no requests for a while."""
    HELD = "held"
    """A canary rolled the worker back, or an audit found violations in its answers: it gets no
    requests until it is released."""
    DRAINING = "draining"
    """The worker was removed from the sources, and finishes its in-flight requests."""


class FindingKind(StrEnum):
    """The part of a worker that a finding is about."""

    ACCEPTANCE = "acceptance"
    SAMPLING = "sampling"
    REASONING = "reasoning"
    GRAMMAR = "grammar"
    TOOLS = "tools"
    TEMPLATE = "template"
    ACCOUNT = "account"
    ADVISORY = "advisory"
    SCORES = "scores"
    """The worker's scores of answers, without which it is not audited."""
    AUDIT = "audit"
    """A violation in the worker's answers."""


@dataclass(frozen=True, slots=True)
class WorkerFinding:
    """A fault of a worker that still serves."""

    kind: FindingKind
    text: str
    """One sentence with the fault and the flag that fixes it."""


@dataclass(slots=True)
class WorkerCounters:
    """Counts of requests that were sent to a worker."""

    reasons: Counter[RoutingReason] = field(default_factory=Counter)
    """Number of requests by routing reason."""
    tokens: int = 0
    retried: int = 0
    """Requests moved to another worker before their first token."""
    continued: int = 0
    """Requests moved to another worker after their first token."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Snapshot of a worker. Counts start when the worker joined, ``counted`` when its process
    started."""

    name: str
    state: WorkerState
    reason: str
    """Reason why the worker does not serve; empty if it does."""
    running: int
    outstanding: float
    """Tokens that the worker still has to process (``engine/fleet/routing.py``)."""
    requests: Mapping[str, int]
    """Requests sent to the worker, by ``RoutingReason``."""
    tokens: int
    retried: int
    continued: int
    openings: int
    counted: Totals | None
    """The worker's own speculation counters; None if it reports none."""
    findings: tuple[WorkerFinding, ...] = ()
    """Faults that the start-up probe and audits found in the worker."""
    version: str | None = None
    """Version of the worker's server; None if it names none or was not asked yet."""


def describe_versions(versions: Mapping[str, str | None]) -> str | None:
    """Name the versions of workers, by name; None unless at least two versions are known."""
    groups: dict[str, list[str]] = {}
    for name, version in sorted(versions.items()):
        if version is not None:
            groups.setdefault(version, []).append(name)
    if len(groups) < 2:
        return None
    listed = [f"{version} ({', '.join(names)})" for version, names in sorted(groups.items())]
    return f"the workers have several versions: {'; '.join(listed)}"
