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
    """Begins half-open: a new worker must pass a probe, too. ``now`` is any clock in seconds."""

    def __init__(self, settings: BreakerSettings, chance: Callable[[], float] = random) -> None:
        self._settings = settings
        self._chance = chance
        self._failures = 0
        self._trouble = 0
        """Openings since the last request that succeeded."""
        self.state = CircuitState.HALF_OPEN
        self.retry_at = 0.0
        self.num_opened = 0

    @property
    def is_closed(self) -> bool:
        return self.state is CircuitState.CLOSED

    def record_success(self) -> None:
        """A request made progress."""
        self._failures = self._trouble = 0

    def record_failure(self, now: float) -> None:
        """A request failed through the worker's fault."""
        self._failures += 1
        if self.is_closed and self._failures >= self._settings.failures:
            self.open(now)

    def open(self, now: float) -> None:
        """Send no requests until a probe passes."""
        self.num_opened += self.is_closed
        self.state = CircuitState.OPEN
        self.retry_at = now + self._backoff_s()
        self._trouble += 1

    def begin_probe(self) -> None:
        """The backoff is over."""
        self.state = CircuitState.HALF_OPEN

    def close(self) -> None:
        """The probe passed."""
        self.state = CircuitState.CLOSED
        self._failures = 0

    def _backoff_s(self) -> float:
        settings = self._settings
        longest = min(settings.max_backoff_s, settings.backoff_s * 2.0 ** min(self._trouble, 32))
        return longest * (1 - settings.jitter * self._chance())
