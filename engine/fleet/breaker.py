"""Circuit breaker: whether a worker is given requests.

    closed    -> open        failures in a row, or the worker was lost
    open      -> half-open   the backoff is over
    half-open -> closed      the probe passed
    half-open -> open        the probe failed; the backoff doubles

Half-open admits only the fleet's own probe: a client's request never tries out a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from random import random

from engine.fleet.settings import BreakerSettings


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Begins half-open: a new worker has to pass a probe, too. ``now`` is any clock in seconds."""

    def __init__(self, rules: BreakerSettings, chance: Callable[[], float] = random) -> None:
        self._rules = rules
        self._chance = chance
        self._failures = 0
        self._trouble = 0
        """Openings since the last request that succeeded."""
        self.circuit = CircuitState.HALF_OPEN
        self.retry_at = 0.0
        self.num_opened = 0

    @property
    def closed(self) -> bool:
        return self.circuit is CircuitState.CLOSED

    def succeeded(self) -> None:
        """A request made progress."""
        self._failures = self._trouble = 0

    def failed(self, now: float) -> None:
        """A request did not, through the worker's fault."""
        self._failures += 1
        if self.closed and self._failures >= self._rules.failures:
            self.open(now)

    def open(self, now: float) -> None:
        """Give nothing more, until a probe passes."""
        self.num_opened += self.closed
        self.circuit = CircuitState.OPEN
        self.retry_at = now + self._pause()
        self._trouble += 1

    def probe(self) -> None:
        """The pause is over."""
        self.circuit = CircuitState.HALF_OPEN

    def close(self) -> None:
        """The probe passed."""
        self.circuit = CircuitState.CLOSED
        self._failures = 0

    def _pause(self) -> float:
        rules = self._rules
        longest = min(rules.max_backoff_s, rules.backoff_s * 2.0 ** min(self._trouble, 32))
        return longest * (1 - rules.jitter * self._chance())
