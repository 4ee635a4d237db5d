"""How likely draft tokens are to be accepted, per request and draft position.

*Conditional acceptance* at position j is the probability that draft token j is accepted given that
tokens 1 .. j-1 were. *Survival* at j is the product of the first j: the probability that token j
is committed. A verify step of width d with a accepted tokens is a trial at positions
1 .. min(a + 1, d), a success at 1 .. a, and says nothing of deeper ones.

Three levels: a request is shrunk to its slice, a slice to its tenant (an API key), a tenant to
``START``. Tenants share nothing: one tenant's traffic cannot teach another's estimates. Counts are
discounted, so estimates follow a change of traffic, and a position no longer drafted is
forgotten. Where a level knows little of a position, the fall from the positions before it goes on:
acceptance that falls with depth (attention drift) lowers the depths behind it before any trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

START = 0.6
"""Conditional acceptance before anything is known."""
START_WEIGHT = 2.0
"""Trials that ``START`` counts for."""
SLICE_WEIGHT = 12.0
"""Trials that a tenant's estimate counts for in a slice of it."""
REQUEST_WEIGHT = 3.0
"""Trials that a slice's estimate counts for in a request; few, as requests differ widely."""
OWN_WEIGHT = 4.0
"""The most trials a request's own previous position counts for at the next one."""
REQUEST_MEMORY = 0.95
SLICE_MEMORY = 0.995
TENANT_MEMORY = 0.999
"""What one verify step leaves of the older counts."""
RECENT_MEMORY = 0.95
RECENT_LEAST = 8.0
CHANGE = 4.0
"""Standard errors between recent and older acceptance that count as a change of traffic."""
KEPT_AFTER_CHANGE = 0.002
HIGHEST = 0.995


class _Counts:
    """Discounted trials and successes per position, a row each; shape (rows, depth)."""

    def __init__(self, rows: int, depth: int, memory: float) -> None:
        self.trials = np.zeros((rows, depth))
        self.successes = np.zeros((rows, depth))
        self._memory = memory

    def grow(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, np.concatenate([value, np.zeros_like(value)]))

    def clear(self, row: int) -> None:
        self.trials[row] = 0.0
        self.successes[row] = 0.0

    def add(self, rows: int | list[int], tried: Floats, accepted: Floats, times: int) -> None:
        """Add ``times`` trials of a row, or of each of several, summed."""
        left = self._memory**times
        self.trials[rows] = self.trials[rows] * left + tried
        self.successes[rows] = self.successes[rows] * left + accepted


class _WatchedCounts(_Counts):
    """Counts that start again when the first position's acceptance has changed.

    Deep positions are tried only while shallow ones are accepted, so what is known of them is the
    oldest: it goes with the traffic it was learnt from.
    """

    def __init__(self, rows: int, depth: int, memory: float) -> None:
        super().__init__(rows, depth, memory)
        self._recent = np.zeros((rows, 2))

    def add_watched(self, row: int, tried: Floats, accepted: Floats, times: int) -> None:
        self.add(row, tried, accepted, times)
        recent = self._recent[row]
        recent *= RECENT_MEMORY**times
        recent[0] += tried[0]
        recent[1] += accepted[0]
        self._check(row)

    def _check(self, row: int) -> None:
        recent, hits = self._recent[row]
        older, older_hits = self.trials[row, 0] - recent, self.successes[row, 0] - hits
        if recent < RECENT_LEAST or older < RECENT_LEAST:
            return
        pooled = (self.successes[row, 0] + 1) / (self.trials[row, 0] + 2)
        variance = pooled * (1 - pooled) * (1 / recent + 1 / older)
        if (hits / recent - older_hits / older) ** 2 > CHANGE**2 * variance:
            self.trials[row] *= KEPT_AFTER_CHANGE
            self.successes[row] *= KEPT_AFTER_CHANGE
            self.trials[row, 0], self.successes[row, 0] = recent, hits


class SurvivalEstimator:
    """Survival per request and position, up to ``depth`` draft tokens."""

    def __init__(self, depth: int, rows: int = 64) -> None:
        self.depth = depth
        self._requests = _Counts(rows, depth, REQUEST_MEMORY)
        self._slices = _WatchedCounts(16, depth, SLICE_MEMORY)
        self._tenants = _WatchedCounts(16, depth, TENANT_MEMORY)
        self._free = list(range(rows))[::-1]
        self._row: dict[str, int] = {}
        self._slice_of = np.zeros(rows, dtype=np.int64)
        self._slice_rows: dict[tuple[str, str], int] = {}
        self._tenant_of: list[int] = []
        self._tenant_rows: dict[str, int] = {}
        self._age = [0] * rows
        self._estimates = np.zeros((16, depth))
        self._widths = np.zeros((16, depth + 1), dtype=np.int64)
        self._stale: set[int] = set()
        self._positions = np.arange(1, depth + 1)

    def __contains__(self, request: str) -> bool:
        return request in self._row

    def add(self, request: str, traffic: str = "", tenant: str = "") -> None:
        """A request begins. ``traffic`` names its slice within the tenant."""
        if not self._free:
            self._grow_requests()
        row = self._free.pop()
        self._row[request] = row
        self._requests.clear(row)
        self._age[row] = 0
        self._slice_of[row] = self._slice_row(tenant, traffic)

    def move(self, request: str, traffic: str, tenant: str = "") -> None:
        """A request goes on in another slice; what it has shown itself stays."""
        self._slice_of[self._row[request]] = self._slice_row(tenant, traffic)

    def remove(self, request: str) -> None:
        """A request has ended; unknown ones are ignored."""
        row = self._row.pop(request, None)
        if row is not None:
            self._free.append(row)

    def observe(
        self,
        requests: Sequence[str],
        drafted: Sequence[Sequence[int]],
        accepted: Sequence[Sequence[int]],
    ) -> None:
        """Verify steps of the same requests: draft tokens verified and accepted of each, shape
        (steps, requests). Older counts fade before them, not between them.
        """
        known = [i for i, request in enumerate(requests) if request in self._row]
        rows, steps = [self._row[requests[i]] for i in known], len(drafted)
        for row in rows:
            self._age[row] += steps
        if not rows or not any(map(any, drafted)):
            return
        width = np.array(drafted)[:, known, None]
        hits = np.array(accepted)[:, known, None]
        tried = (self._positions <= np.minimum(hits + 1, width)).sum(axis=0, dtype=np.float64)
        success = (self._positions <= hits).sum(axis=0, dtype=np.float64)
        self._requests.add(rows, tried, success, steps)
        members: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            members.setdefault(int(self._slice_of[row]), []).append(index)
        for row, mine in members.items():
            sums = tried[mine].sum(axis=0), success[mine].sum(axis=0), steps * len(mine)
            self._slices.add_watched(row, *sums)
            self._tenants.add_watched(self._tenant_of[row], *sums)
            self._stale.add(row)

    def conditional(self, requests: Sequence[str]) -> Floats:
        """Conditional acceptance, shape (requests, depth)."""
        rows = np.fromiter((self._row[request] for request in requests), np.int64, len(requests))
        slices = self._slice_of[rows]
        for row in self._stale.intersection(slices.tolist()):
            self._estimates[row] = self._estimate_slice(row)
            self._stale.discard(row)
        own = self._requests
        trials = own.trials[rows].T
        weight = np.empty_like(trials)
        weight[0] = 0.0
        np.minimum(trials[:-1], OWN_WEIGHT, out=weight[1:])
        below = 1.0 / (trials + weight + REQUEST_WEIGHT)
        found = (own.successes[rows].T + REQUEST_WEIGHT * self._estimates[slices].T) * below
        weight *= below
        for j in range(1, self.depth):
            found[j] += weight[j] * found[j - 1]
        return np.minimum(found, HIGHEST).T

    def survival(self, requests: Sequence[str]) -> Floats:
        """Probability that draft token j is committed, shape (requests, depth)."""
        survival: Floats = np.cumprod(self.conditional(requests), axis=1)
        return survival

    def count_widths(self, requests: Sequence[str], widths: Sequence[int], steps: int) -> None:
        """Count what was chosen for so many steps, by slice; those that are over do not count."""
        for request, width in zip(requests, widths, strict=True):
            if (row := self._row.get(request)) is not None:
                self._widths[self._slice_of[row], width] += steps

    def trials(self, requests: Sequence[str]) -> Floats:
        """Discounted trials behind the requests' own estimates, shape (requests, depth)."""
        return self._requests.trials[[self._row[request] for request in requests]]

    def age(self, requests: Sequence[str]) -> Ints:
        """Steps observed of each request."""
        return np.array([self._age[self._row[request]] for request in requests])

    def describe(self) -> list[dict[str, object]]:
        """Every slice: tenant, traffic, acceptance and trials per position, depths chosen."""
        return [
            {
                "tenant": tenant,
                "traffic": traffic,
                "conditional_acceptance": self._estimate_slice(row).round(3).tolist(),
                "trials": self._slices.trials[row].round(1).tolist(),
                "requests_by_depth": self._widths[row].tolist(),
            }
            for (tenant, traffic), row in self._slice_rows.items()
        ]

    def _estimate_slice(self, row: int) -> Floats:
        tenant = self._tenant_of[row]
        above = _extend(self._tenants.trials[tenant], self._tenants.successes[tenant])
        trials, successes = self._slices.trials[row], self._slices.successes[row]
        shrunk = (successes + SLICE_WEIGHT * above) / (trials + SLICE_WEIGHT)
        return np.asarray(np.minimum(shrunk, HIGHEST))

    def _slice_row(self, tenant: str, traffic: str) -> int:
        row = self._slice_rows.get((tenant, traffic))
        if row is not None:
            return row
        row = len(self._slice_rows)
        if row == len(self._slices.trials):
            self._slices.grow()
            self._estimates = np.vstack([self._estimates, np.zeros_like(self._estimates)])
            self._widths = np.vstack([self._widths, np.zeros_like(self._widths)])
        tenant_row = self._tenant_rows.setdefault(tenant, len(self._tenant_rows))
        if tenant_row == len(self._tenants.trials):
            self._tenants.grow()
        self._slice_rows[tenant, traffic] = row
        self._tenant_of.append(tenant_row)
        self._stale.add(row)
        return row

    def _grow_requests(self) -> None:
        rows = len(self._requests.trials)
        self._requests.grow()
        self._slice_of = np.concatenate([self._slice_of, np.zeros_like(self._slice_of)])
        self._age += [0] * rows
        self._free = list(range(rows, 2 * rows))[::-1]


def _extend(trials: Floats, successes: Floats) -> Floats:
    """A top level's estimate: what is unknown goes on falling as the known positions do."""
    found: list[float] = []
    before, last = START, START
    for tried, accepted in zip(trials.tolist(), successes.tolist(), strict=True):
        base = last * min(1.0, last / max(before, 1e-6))
        found.append((accepted + START_WEIGHT * base) / (tried + START_WEIGHT))
        before, last = last, found[-1]
    return np.array(found)
