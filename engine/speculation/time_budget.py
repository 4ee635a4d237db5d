"""A share of the engine's time for work that no request asked for: audits and trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeBudget:
    """Grows by ``share`` of the time that passes, to ``most_s`` seconds, and is spent by work."""

    def __init__(
        self, share: float, most_s: float, clock: Callable[[], float], saved_s: float
    ) -> None:
        """``saved_s``: seconds that may be spent at once in the beginning."""
        self._share, self._most_s, self._clock = share, most_s, clock
        self._saved_s = saved_s
        self._spent_s = 0.0
        self._began = self._seen_at = clock()
        self._paused = False

    @property
    def share_spent(self) -> float:
        """Share of the time since the beginning that was spent."""
        return self._spent_s / max(1e-9, self._clock() - self._began)

    def has_time(self, spare_s: float = 0.0) -> bool:
        """Whether work may begin now that leaves ``spare_s`` for other work."""
        now = self._clock()
        self._saved_s = min(self._most_s, self._saved_s + self._share * (now - self._seen_at))
        self._seen_at = now
        return self._saved_s > spare_s

    def spend(self, seconds: float) -> None:
        """Charge work that is done, or under way; the budget may fall below 0."""
        self._spent_s += seconds
        self._saved_s -= 0.0 if self._paused else seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Work inside is counted and costs nothing of the budget."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False
