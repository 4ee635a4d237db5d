"""Pace of clients' requests beside trials and without them: the price of a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

KEPT_S = 300.0
"""Request-seconds without trials after which older ones count half."""


class ClientPace:
    """Decode steps per second of a running client's request.

    A request-second is one second of one request.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen_at = clock()
        self._running = 0
        self._steps, self._request_s = 0, 0.0
        self._steps_alone, self._alone_s = 0.0, 0.0

    @contextmanager
    def count_request(self) -> Iterator[None]:
        """Count the context as the time of one request."""
        self._advance()
        self._running += 1
        try:
            yield
        finally:
            self._advance()
            self._running -= 1

    def count_steps(self, steps: int) -> None:
        self._steps += steps

    def begin_trials(self) -> None:
        """Add the time so far to the pace without trials."""
        steps, request_s = self._take()
        if self._alone_s > KEPT_S:
            self._steps_alone, self._alone_s = self._steps_alone / 2, self._alone_s / 2
        self._steps_alone += steps
        self._alone_s += request_s

    def end_trials(self, trial_s: float) -> float:
        """Return the share of the engine's time since ``begin_trials`` that trials took.

        The share is the clients' loss of pace, and at least the trials' share of all running
        requests. ``trial_s`` is their time, in request-seconds. Without clients, or if their pace
        without trials is unknown, the share is 1.
        """
        steps, request_s = self._take()
        if not request_s or not self._steps_alone:
            return 1.0
        pace = (steps / request_s) / (self._steps_alone / self._alone_s)
        return min(1.0, max(1.0 - pace, trial_s / (trial_s + request_s)))

    def _advance(self) -> None:
        now = self._clock()
        self._request_s += self._running * (now - self._seen_at)
        self._seen_at = now

    def _take(self) -> tuple[int, float]:
        """Return the steps and request-seconds since the last call."""
        self._advance()
        counts = self._steps, self._request_s
        self._steps, self._request_s = 0, 0.0
        return counts
