"""Share of planned draft tokens that a lookup finds.

A request for which n-gram or suffix lookup found nothing has no drafts at that step, and verifies
none. A plan for it costs what is expected to be found, not what it allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
OWN_MEMORY = 0.95
"""Share of a request's counts that is kept at each of its steps..."""
ALL_MEMORY = 0.999
"""... and of all requests' counts."""
PRIOR = 4.0
"""Steps' worth of all requests in the share of one."""


class FoundShare:
    """Share of planned draft tokens that were found, per request and position up to ``depth``.

    Before anything is observed it is one: a plan is priced as if all were found.
    """

    def __init__(self, depth: int) -> None:
        self._positions = np.arange(1, depth + 1)
        self._all = np.full((2, depth), 1e-3)
        self._own: dict[str, Floats] = {}
        """Planned and found of each request, discounted."""

    def observe(
        self, requests: Sequence[str], planned: Sequence[int], found: Sequence[int]
    ) -> None:
        """One step: draft tokens that a plan allowed to each request, and those there were."""
        for request, width, count in zip(requests, planned, found, strict=True):
            if not width:
                continue
            step = np.array([self._positions <= width, self._positions <= count], dtype=float)
            self._all = self._all * ALL_MEMORY + step
            self._own[request] = self._own.get(request, 0.0) * OWN_MEMORY + step

    def remove(self, request: str) -> None:
        """A request has ended; unknown ones are ignored."""
        self._own.pop(request, None)

    def estimate(self, requests: Sequence[str]) -> Floats:
        """Shape (requests, depth); no position is found more often than the one before it."""
        shared = self._all[1] / self._all[0]
        counts = np.array([self._own.get(request, 0.0 * self._all) for request in requests])
        shares = (counts[:, 1] + PRIOR * shared) / (counts[:, 0] + PRIOR)
        return np.asarray(np.minimum.accumulate(shares, axis=1))
