"""How fast requests are served, learned from those that were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median_high

Clock = Callable[[], float]


class ServiceRate:
    """From how long requests held their places, so that hours without any change nothing.

    A gateway with P places, held for H seconds by a request, serves P / H requests per second while
    others wait (Little's law), however few came before.
    """

    SAMPLES = 128
    RECENT_S = 60.0
    MIN_S, MAX_S, UNKNOWN_S = 1.0, 120.0, 5.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: deque[tuple[float, float]] = deque(maxlen=self.SAMPLES)
        self._held: deque[float] = deque(maxlen=self.SAMPLES)
        self._typical_s = self._mean_held_s = 0.0

    def note(self, seconds: float, sequences: int = 1) -> None:
        """A request was served, ``seconds`` after its admission, in ``sequences`` places."""
        self._ended.append((self._clock(), seconds))
        self._held.append(seconds * sequences)
        self._typical_s = median_high(seconds for _, seconds in self._ended)
        self._mean_held_s = sum(self._held) / len(self._held)

    @property
    def per_s(self) -> float | None:
        """Requests per second of the last minute; None without two of them."""
        now = self._clock()
        recent = [at for at, _ in self._ended if at >= now - self.RECENT_S]
        if len(recent) < 2 or recent[0] == now:
            return None
        return (len(recent) - 1) / (now - recent[0])

    @property
    def typical_s(self) -> float:
        """The median time from admission to end; 0 while unknown."""
        return self._typical_s

    def wait_s(self, requests: float, places: int) -> float | None:
        """How long until ``requests`` have been served in ``places``; None while unknown."""
        if not self._ended:
            return None
        return requests * self._mean_held_s / max(1, places)

    def retry_after_s(self, requests: float, places: int) -> float:
        """What to tell one who would be behind ``requests`` others."""
        wait = self.wait_s(requests, places)
        return self.UNKNOWN_S if wait is None else min(self.MAX_S, max(self.MIN_S, wait))
