"""Probability that draft tokens are accepted, per request and draft position.

*Conditional acceptance* at position j is the probability that draft token j is accepted given that
tokens 1 .. j-1 were. *Survival* at j is the product of the first j: the probability that token j
is committed. A verify step of width d with a accepted tokens is a trial at positions
1 .. min(a + 1, d), a success at 1 .. a, and says nothing of deeper ones.

A request is of one of a few *levels* of acceptance, each with a curve over positions. How likely
each level is follows by Bayes' rule from the request's own trials and from a prior: the levels of
the newest requests of its slice, those that run beside it included, and, where there are few, those
of its tenant (an API key). So the first verified steps tell most, positions that were never tried
are known from the level, and a slice may hold requests of two kinds. Beside that, a request's own
counts by position go their own way.

Tenants share nothing: one tenant's traffic cannot teach another's estimates. Counts are discounted,
so estimates follow a change of traffic. A level's curve is learnt per slice; where it was not
tried, the fall from the positions before goes on: acceptance that falls with depth (attention
drift) lowers the depths behind it before any trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

LEVELS = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.7, 0.82, 0.91, 0.97])
"""Acceptance at the first position of each level."""
START = np.array([0.06, 0.08, 0.08, 0.08, 0.1, 0.12, 0.15, 0.16, 0.17])
"""Shares of the levels before anything is known."""
START_WEIGHT = 1.0
"""Requests that ``START`` counts for in a tenant..."""
TENANT_WEIGHT = 1.0
"""... and a tenant's shares in a slice of it."""
UNSEEN = 0.02
"""Share of requests that may be of any level, whatever the newest ones were."""
LEVEL_WEIGHT = 20.0
"""Trials that a level's acceptance counts for at the first position..."""
FALL_WEIGHT = 4.0
"""... trials that the fall from the positions before counts for at the next one..."""
CURVE_WEIGHT = 8.0
"""... and trials that the fall of all levels counts for in one of them."""
REQUEST_WEIGHT = 10.0
"""Trials that the levels' estimate counts for in a request."""
SHARPNESS = 0.8
"""Weight of a trial's evidence on the level, where an independent trial has 1: text is easy or
hard for a while.
"""
REQUEST_MEMORY = 0.95
"""Share of a request's older counts that one verify step leaves..."""
CURVE_LOSS = 0.002
"""... and the share of a level's counts that a trial takes."""
SLICE_MEMORY = 0.7
TENANT_MEMORY = 0.9
"""Share of the weight of older requests that one request leaves."""
CURVE_EVERY = 24
"""Observations of a slice between estimates of its curves."""
HIGHEST = 0.995
EVERY = slice(None)


class _Slices:
    """Knowledge of each slice: its curves, and the levels of its newest requests."""

    def __init__(self, depth: int, rows: int = 16) -> None:
        levels = len(LEVELS)
        self.rows: dict[tuple[str, str], int] = {}
        self.tenant_of: list[int] = []
        self.slices_of: dict[int, list[int]] = {}
        self.counts = np.zeros((rows, levels, 2 * depth))
        """Trials of each level and position; behind them successes."""
        self.evidence = np.zeros((rows, 2 * depth, levels))
        """Evidence on the level, of a trial and, added to it, of a success at each position: in all
        the logarithm of the level's conditional acceptance, or of its opposite."""
        self.survival = np.zeros((rows, levels, depth))
        self.ended = np.zeros((rows, levels))
        """Weight of each level among requests that have ended..."""
        self.running = np.zeros((rows, levels))
        """... among those that run..."""
        self.base = np.zeros((rows, levels))
        """... and what the tenant's others add."""
        self._tenants: dict[str, int] = {}
        self._tenant_ended = np.zeros((rows, levels))
        self._observed = [0] * rows

    def find(self, tenant: str, traffic: str) -> int:
        row = self.rows.get((tenant, traffic))
        if row is not None:
            return row
        row = len(self.rows)
        if row == len(self.ended):
            self._grow()
        tenant_row = self._tenants.setdefault(tenant, len(self._tenants))
        self.rows[tenant, traffic] = row
        self.tenant_of.append(tenant_row)
        self.slices_of.setdefault(tenant_row, []).append(row)
        shares = self._tenant_ended[tenant_row] + START_WEIGHT * START
        self.base[row] = TENANT_WEIGHT * shares / shares.sum()
        self._estimate(row)
        return row

    def get_shares(self, row: int) -> Floats:
        """Weight of each level among the newest requests of a slice, those that run included."""
        return np.asarray(self.ended[row] + self.running[row] + self.base[row])

    def observe(self, row: int, levels: Floats, counts: Floats) -> None:
        """Trials, and behind them successes, of requests of one slice, shape (requests, 2 K);
        ``levels``: how likely each request is of each level, shape (requests, levels).
        """
        counts = levels.T @ counts
        known = self.counts[row]
        known *= np.maximum(1.0 - CURVE_LOSS * counts[:, :1], 0.0)
        known += counts
        self._observed[row] += 1
        if self._observed[row] % CURVE_EVERY == 1:
            self._estimate(row)

    def end(self, row: int, levels: Floats) -> None:
        """A request of whose level something is known has ended."""
        tenant = self.tenant_of[row]
        self.running[row] -= levels
        self.ended[row] = self.ended[row] * SLICE_MEMORY + levels
        self._tenant_ended[tenant] = self._tenant_ended[tenant] * TENANT_MEMORY + levels
        shares = self._tenant_ended[tenant] + START_WEIGHT * START
        self.base[self.slices_of[tenant]] = TENANT_WEIGHT * shares / shares.sum()

    def _estimate(self, row: int) -> None:
        """The curves. Acceptance falls from a position to the next at all levels alike, as far as
        a level was not tried itself; where none was, it goes on to fall as before.
        """
        trials, successes = np.split(self.counts[row].T, 2)
        curve = np.empty_like(trials)
        curve[0] = (successes[0] + LEVEL_WEIGHT * LEVELS) / (trials[0] + LEVEL_WEIGHT)
        fall = 1.0
        for j in range(1, len(curve)):
            tried, accepted, before = trials[j], successes[j], curve[j - 1]
            fall = (accepted.sum() + FALL_WEIGHT * fall) / (tried @ before + FALL_WEIGHT)
            base = min(1.0, fall) * before
            curve[j] = (accepted + CURVE_WEIGHT * base) / (tried + CURVE_WEIGHT)
        curve = np.clip(curve.T, 0.005, HIGHEST)
        misses = SHARPNESS * np.log1p(-curve)
        self.evidence[row] = np.hstack([misses, SHARPNESS * np.log(curve) - misses]).T
        self.survival[row] = np.cumprod(curve, axis=1)

    def _grow(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, _double(value))
        self._observed += [0] * len(self._observed)


class SurvivalEstimator:
    """Survival per request and position, up to ``depth`` draft tokens."""

    def __init__(self, depth: int, rows: int = 64) -> None:
        self.depth = depth
        self._counts = np.zeros((rows, 4, depth))
        """Discounted trials and successes of each request and position, and those of them that the
        levels have not been learnt from yet."""
        self._waiting: set[int] = set()
        """Rows that have some."""
        self._slices = _Slices(depth)
        self._free = list(range(rows))[::-1]
        self._row: dict[str, int] = {}
        self._slice_of = np.zeros(rows, dtype=np.int64)
        self._age = [0] * rows
        self._evidence = np.zeros((rows, len(LEVELS)))
        """Logarithm of how likely each level makes what a request has shown."""
        self._levels = np.zeros((rows, len(LEVELS)))
        """Probability of each level for each request; zeros where it has shown nothing yet."""
        self._widths = np.zeros((16, depth + 1), dtype=np.int64)
        self._positions = np.arange(1, depth + 1)

    def __contains__(self, request: str) -> bool:
        return request in self._row

    def add(self, request: str, traffic: str = "", tenant: str = "") -> None:
        """A request begins. ``traffic`` names its slice within the tenant."""
        if not self._free:
            self._grow_requests()
        row = self._free.pop()
        self._row[request] = row
        self._counts[row] = 0.0
        self._evidence[row] = 0.0
        self._age[row] = 0
        self._slice_of[row] = self._find_slice(tenant, traffic)

    def move(self, request: str, traffic: str, tenant: str = "") -> None:
        """A request goes on in another slice; what it has shown itself stays."""
        row, found = self._row[request], self._find_slice(tenant, traffic)
        self._slices.running[self._slice_of[row]] -= self._levels[row]
        self._slices.running[found] += self._levels[row]
        self._slice_of[row] = found

    def remove(self, request: str) -> None:
        """A request has ended; unknown ones are ignored."""
        row = self._row.pop(request, None)
        if row is None:
            return
        if self._waiting:
            self._learn()
        self._free.append(row)
        if self._levels[row, 0]:
            self._slices.end(int(self._slice_of[row]), self._levels[row])
            self._levels[row] = 0.0

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
        both = np.array([drafted, accepted])
        if len(known) < len(requests):
            both = both[:, :, known]
        np.minimum(both[0], both[1] + 1, out=both[0])
        new = (self._positions <= both[..., None]).sum(axis=1).transpose(1, 0, 2)
        counts = self._counts[rows]
        counts[:, :2] *= REQUEST_MEMORY**steps
        counts[:, :2] += new
        counts[:, 2:] += new
        self._counts[rows] = counts
        self._waiting.update(rows)

    def _learn(self) -> None:
        """Learn the requests' levels and the levels' curves from the newest steps."""
        rows = np.array([*self._waiting])
        self._waiting.clear()
        counts = self._counts[rows].reshape(len(rows), 2, -1)
        self._counts[rows, 2:] = 0.0
        for row, mine in self._group(rows):
            own, new = counts[mine].transpose(1, 0, 2)
            evidence = own @ self._slices.evidence[row]
            known = rows[mine]
            self._evidence[known] = evidence
            before = self._levels[known]
            levels = self._estimate_levels(row, evidence, before) * (own[:, :1] > 0)
            self._levels[known] = levels
            self._slices.running[row] += (levels - before).sum(axis=0)
            self._slices.observe(row, levels, new)

    def _group(self, rows: Ints) -> list[tuple[int, Ints | slice]]:
        """Group requests by slice: the slice, and the places of its requests in ``rows``."""
        slices = self._slice_of[rows]
        each = set(slices.tolist())
        if len(each) == 1:
            return [(each.pop(), EVERY)]
        return [(row, np.flatnonzero(slices == row)) for row in each]

    def _estimate_levels(self, row: int, evidence: Floats, shown: Floats) -> Floats:
        """Estimate the probability of each level for requests of one slice, shape (requests,
        levels). ``shown``: what they are counted as so far.
        """
        prior = self._slices.get_shares(row) - shown
        np.maximum(prior, 0.0, out=prior)
        prior *= (1 - UNSEEN) / prior.sum(axis=1, keepdims=True)
        prior += UNSEEN / len(LEVELS)
        prior *= np.exp(evidence - evidence.max(axis=1, keepdims=True))
        prior /= prior.sum(axis=1, keepdims=True)
        return prior

    def conditional(self, requests: Sequence[str]) -> Floats:
        """Conditional acceptance, shape (requests, depth)."""
        if self._waiting:
            self._learn()
        rows = np.fromiter((self._row[request] for request in requests), np.int64, len(requests))
        all_levels = self._levels[rows]
        survival = np.empty((len(rows), self.depth))
        for row, mine in self._group(rows):
            levels = all_levels[mine]
            unknown = levels[:, 0] == 0.0
            if unknown.any():
                evidence = self._evidence[rows[mine][unknown]]
                levels[unknown] = self._estimate_levels(row, evidence, levels[unknown])
            survival[mine] = levels @ self._slices.survival[row]
        survival[:, 1:] /= survival[:, :-1].copy()
        counts = self._counts[rows]
        found = counts[:, 1] + REQUEST_WEIGHT * survival
        found /= counts[:, 0] + REQUEST_WEIGHT
        return np.asarray(np.minimum(found, HIGHEST))

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
        return self._counts[[self._row[request] for request in requests], 0]

    def age(self, requests: Sequence[str]) -> Ints:
        """Steps observed of each request."""
        return np.array([self._age[self._row[request]] for request in requests])

    def describe(self) -> list[dict[str, object]]:
        """Every slice: tenant, traffic, acceptance and trials per position, depths chosen."""
        return [
            {
                "tenant": tenant,
                "traffic": traffic,
                "conditional_acceptance": self._expect(row).round(3).tolist(),
                "trials": self._slices.counts[row, :, : self.depth].sum(axis=0).round(1).tolist(),
                "requests_by_depth": self._widths[row].tolist(),
            }
            for (tenant, traffic), row in self._slices.rows.items()
        ]

    def _expect(self, row: int) -> Floats:
        """Conditional acceptance of the next request of a slice."""
        slices = self._slices
        prior = slices.get_shares(row)
        survival = prior @ slices.survival[row] / prior.sum()
        survival[1:] /= survival[:-1].copy()
        return np.asarray(survival)

    def _find_slice(self, tenant: str, traffic: str) -> int:
        row = self._slices.find(tenant, traffic)
        if row >= len(self._widths):
            self._widths = _double(self._widths)
        return row

    def _grow_requests(self) -> None:
        rows = len(self._age)
        self._counts = _double(self._counts)
        self._slice_of = _double(self._slice_of)
        self._evidence, self._levels = _double(self._evidence), _double(self._levels)
        self._age += [0] * rows
        self._free = list(range(rows, 2 * rows))[::-1]


def _double(values: NDArray[Any]) -> NDArray[Any]:
    """Twice the rows; the new ones are zeros."""
    return np.concatenate([values, np.zeros_like(values)])
