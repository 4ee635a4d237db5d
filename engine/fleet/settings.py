"""What an operator may decide about a fleet."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Which worker gets a request. Amounts are tokens."""

    block: int = 64
    """Tokens of a prompt that are told apart as one; best a multiple of the workers' own block."""
    key_blocks: int = 4
    """Leading blocks that decide where a prompt goes which no worker is known to have met."""
    most_blocks: int = 512
    """Leading blocks of a prompt that are looked at."""
    memory_blocks: int = 1 << 16
    """Blocks remembered per worker: about what its prefix cache holds."""
    epsilon: float = 0.25
    """A worker with more than (1 + epsilon) times the mean load is passed over."""
    slack: float = 8192.0
    """Load below which no worker is passed over: waiting so long costs less than moving."""
    output_weight: float = 1.0
    """What an output token weighs beside a prompt token."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a worker is left alone, and for how long. Seconds unless it says otherwise."""

    failures: int = 3
    """Failures of requests in a row."""
    backoff_s: float = 1.0
    """Pause before the first probe; doubles with each probe that fails."""
    max_backoff_s: float = 10.0
    jitter: float = 0.5
    """Part of the pause that is left to chance, so that gateways do not probe in step."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a fleet is tended. Seconds unless it says otherwise."""

    start_s: float = 600.0
    """A fleet none of whose workers serves after this time does not start."""
    poll_s: float = 2.0
    """Pause between two questions for a worker's health."""
    ask_s: float = 5.0
    """A worker that leaves the question unanswered this long has missed it."""
    missed: int = 3
    """Questions missed in a row after which a worker is given up and its requests move."""
    count_s: float = 15.0
    """Pause between two readings of a worker's own counters."""
    admit_s: float = 60.0
    """A worker that starts or comes back must answer and make a token in this time."""
    retries: int = 1
    """Other workers that are tried with a request which a living worker failed on."""
    pause_s: float = 0.2
    """Before a request goes back to a worker it has been to."""
    balance: RoutingSettings = field(default_factory=RoutingSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
