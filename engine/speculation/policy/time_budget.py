"""Share of the engine's time for audits and trials, which no request asked for."""

from __future__ import annotations

from collections.abc import Callable


class TimeBudget:
    """Budget that grows by ``share`` of the elapsed time, up to ``most_s`` seconds, and pays for
    work."""

    def __init__(
        self, share: float, most_s: float, clock: Callable[[], float], saved_s: float
    ) -> None:
        """Start the budget. ``saved_s`` seconds may be spent at once."""
        self._share, self._most_s, self._clock = share, most_s, clock
        self._saved_s = saved_s
        self._spent_s = 0.0
        self._began = self._seen_at = clock()

    @property
    def share_spent(self) -> float:
        """Share of the time since the start that was spent."""
        return self._spent_s / max(1e-9, self._clock() - self._began)

    def has_time(self, spare_s: float = 0.0) -> bool:
        """Return True if work may begin now that leaves ``spare_s`` for other work."""
        now = self._clock()
        self._saved_s = min(self._most_s, self._saved_s + self._share * (now - self._seen_at))
        self._seen_at = now
        return self._saved_s > spare_s

    def spend(self, seconds: float) -> None:
        """Charge work that is done or in progress. The budget may fall below 0."""
        self._spent_s += seconds
        self._saved_s -= seconds
