"""Which templates are shown by name: the most frequent ones, within fixed memory."""

from __future__ import annotations

from observability.labels import OTHER

NO_TEMPLATE = "none"


class TopTemplates:
    """Names at most ``size`` fingerprints; a newcomer must be seen more often than the rarest.

    Candidates are counted by the space-saving sketch (Metwally et al. 2005) in ``8 * size``
    counters. Only what a candidate was certainly seen counts against a named one, so a flood of
    fingerprints seen once each displaces nothing that was seen twice.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._named: dict[str, int] = {}
        self._candidates: dict[str, tuple[int, int]] = {}

    def name(self, fingerprint: str) -> tuple[str, str | None]:
        """The label value for one more request, and the name given up for it, if any."""
        if not fingerprint:
            return NO_TEMPLATE, None
        if fingerprint in self._named:
            self._named[fingerprint] += 1
            return fingerprint, None
        if len(self._named) < self._size:
            self._named[fingerprint] = 1
            return fingerprint, None
        return self._challenge(fingerprint)

    def _challenge(self, fingerprint: str) -> tuple[str, str | None]:
        seen = self._count(fingerprint)
        rarest = min(self._named, key=self._named.__getitem__, default=None)
        if rarest is None or seen <= self._named[rarest]:
            return OTHER, None
        del self._named[rarest]
        del self._candidates[fingerprint]
        self._named[fingerprint] = seen
        return fingerprint, rarest

    def _count(self, fingerprint: str) -> int:
        """How often the candidate was certainly seen, this time included."""
        count, error = self._candidates.get(fingerprint) or self._evict()
        self._candidates[fingerprint] = (count + 1, error)
        return count + 1 - error

    def _evict(self) -> tuple[int, int]:
        """Where a new candidate starts: at the count of the one it replaces, all of it error."""
        if len(self._candidates) < 8 * self._size:
            return 0, 0
        least = min(self._candidates, key=lambda key: self._candidates[key][0])
        count, _ = self._candidates.pop(least)
        return count, count
