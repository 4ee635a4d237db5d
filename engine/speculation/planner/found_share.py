"""Share of planned draft tokens that a lookup finds.

If n-gram or suffix lookup finds nothing for a request, the request has no drafts at that step and
verifies none. A plan is therefore priced by the expected number of found tokens, not by its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
OWN_MEMORY = 0.95
"""Share of a request's counts that is kept at each of its steps."""
ALL_MEMORY = 0.999
"""Share of all requests' counts that is kept at each step."""
PRIOR = 4.0
"""Weight of all requests' share in that of one request, in steps."""


class FoundShare:
    """Share of planned draft tokens that were found, per request and position up to ``depth``.

    Before the first observation it is one, so that a plan is priced as if all tokens were found.
    """

    def __init__(self, depth: int) -> None:
        self._positions = np.arange(1, depth + 1)
        self._all = np.full((2, depth), 1e-3)
        self._own: dict[str, Floats] = {}
        """Discounted counts of planned and found tokens of each request."""

    def observe(self, requests: Sequence[str], widths: Sequence[int], hits: Sequence[int]) -> None:
        """Observe one step: the draft tokens that the plan allowed each request, and those that
        were found."""
        for request, width, count in zip(requests, widths, hits, strict=True):
            if not width:
                continue
            step = np.array([self._positions <= width, self._positions <= count], dtype=float)
            self._all = self._all * ALL_MEMORY + step
            self._own[request] = self._own.get(request, 0.0) * OWN_MEMORY + step

    def remove(self, request: str) -> None:
        """Forget an ended request. Unknown ones are ignored."""
        self._own.pop(request, None)

    def estimate(self, requests: Sequence[str]) -> Floats:
        """Return the shares, in shape (requests, depth). No position has a larger share than the
        one before."""
        prior_shares = self._all[1] / self._all[0]
        counts = np.array([self._own.get(request, 0.0 * self._all) for request in requests])
        shares = (counts[:, 1] + PRIOR * prior_shares) / (counts[:, 0] + PRIOR)
        return np.asarray(np.minimum.accumulate(shares, axis=1))
