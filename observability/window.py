"""Sums over the last minutes, and what they used to be before that."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from engine.speculation.accounting import Totals

BUCKETS = 30


@dataclass(frozen=True, slots=True)
class WindowSums:
    """What one slice did in some span of time."""

    requests: int = 0
    timed_tokens: int = 0
    seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)

    def __add__(self, other: WindowSums) -> WindowSums:
        return WindowSums(
            self.requests + other.requests,
            self.timed_tokens + other.timed_tokens,
            self.seconds + other.seconds,
            self.totals + other.totals,
        )

    @property
    def tpot(self) -> float | None:
        """Pooled: the time all decode steps took / the tokens they delivered."""
        return self.seconds / self.timed_tokens if self.timed_tokens else None


class SlidingWindow:
    """A ring of buckets; what falls out of it joins an exponentially forgotten baseline.

    The baseline never overlaps the window, so a collapse cannot hide in its own reference.
    """

    def __init__(self, span_s: float, half_life_s: float) -> None:
        self._bucket_s = span_s / BUCKETS
        self._keep = 0.5 ** (self._bucket_s / half_life_s)
        self._buckets: deque[tuple[int, WindowSums]] = deque()
        self._verified = 0.0
        self._accepted = 0.0
        self._forgotten_at = 0

    def add(self, sums: WindowSums, now: float) -> None:
        at = self._expire(now)
        if self._buckets and self._buckets[-1][0] == at:
            self._buckets[-1] = (at, self._buckets[-1][1] + sums)
        else:
            self._buckets.append((at, sums))

    def sums(self, now: float) -> WindowSums:
        self._expire(now)
        return reduce(add, (sums for _, sums in self._buckets), WindowSums())

    def baseline(self, now: float) -> float | None:
        """Acceptance length before the window, weighted by steps; absent without data."""
        self._expire(now)
        return 1 + self._accepted / self._verified if self._verified >= 1 else None

    def history(self, now: float) -> Iterator[tuple[float, WindowSums]]:
        """Each bucket that has something: how many seconds ago it began, and its sums."""
        at = self._expire(now)
        for index, sums in self._buckets:
            yield (at - index) * self._bucket_s, sums

    @property
    def bucket_s(self) -> float:
        return self._bucket_s

    def _expire(self, now: float) -> int:
        at = int(now / self._bucket_s)
        while self._buckets and self._buckets[0][0] <= at - BUCKETS:
            self._forget(*self._buckets.popleft())
        return at

    def _forget(self, at: int, sums: WindowSums) -> None:
        kept = self._keep ** (at - self._forgotten_at)
        self._forgotten_at = at
        self._verified = self._verified * kept + sums.totals.verify_steps
        self._accepted = self._accepted * kept + sums.totals.accepted
