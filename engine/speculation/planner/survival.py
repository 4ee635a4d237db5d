"""Probability that draft tokens are accepted, per request and draft position.

*Conditional acceptance* at position j is the probability that draft token j is accepted given that
tokens 1 .. j-1 were. *Survival* at j is the product of the first j: the probability that token j is
committed. A verify step of width d with a accepted tokens is a trial at positions 1 .. min(a + 1,
d), a success at 1 .. a, and no evidence on deeper positions.

A request belongs to one of a few *levels* of acceptance, each with a curve over positions. The
probability of each level follows by Bayes' rule from the request's own trials and a prior. The
prior is the levels of the newest requests of its slice, running ones included, and, if there are
few, of its tenant (an API key). So the first verified steps are the most informative, positions
that were never tried are known from the level, and a slice may hold requests of two kinds. In
addition, a request's own counts by position adjust its estimate.

Tenants share nothing: one tenant's traffic cannot teach another's estimates. Counts are discounted,
so estimates follow a change of traffic. A level's curve is learnt per slice. At positions that were
not tried, it falls as at the positions before. Acceptance that falls with depth (attention drift)
therefore lowers the estimates of deeper positions before any trial.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.slice_rows import SliceRows

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

LEVELS = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.7, 0.82, 0.91, 0.97])
"""Acceptance at the first position of each level."""
START = np.array([0.06, 0.08, 0.08, 0.08, 0.1, 0.12, 0.15, 0.16, 0.17])
"""Initial shares of the levels."""
START_WEIGHT = 1.0
"""Weight of ``START`` in a tenant's shares, in requests."""
TENANT_WEIGHT = 1.0
"""Weight of a tenant's shares in its slices, in requests."""
UNSEEN = 0.02
"""Share of requests that may have any level, whatever the newest ones were."""
LEVEL_WEIGHT = 20.0
"""Weight of a level's own acceptance at the first position, in trials."""
FALL_WEIGHT = 4.0
"""Weight of the fall at the positions before in the fall at the next one, in trials."""
CURVE_WEIGHT = 8.0
"""Weight of the fall of all levels in that of one level, in trials."""
REQUEST_WEIGHT = 10.0
"""Weight of the levels' estimate in that of a request, in trials."""
SHARPNESS = 0.8
"""Weight of a trial's evidence on the level. It is below 1 because trials are not independent: text
is easy or hard for a while.
"""
REQUEST_MEMORY = 0.95
"""Share of a request's older counts that is kept at a verify step."""
CURVE_LOSS = 0.002
"""Share of a level's counts that is lost at a trial."""
SLICE_MEMORY = 0.7
TENANT_MEMORY = 0.9
"""Shares of the weight of older requests that are kept when a request ends."""
CURVE_EVERY = 24
"""Number of observations of a slice between estimates of its curves."""
NEW_TRIALS = 4.0
"""Trials of a position that are more than all before, after which the curves are estimated at once.
Otherwise a deeper position that nobody had tried is left unused for ``CURVE_EVERY`` steps."""
HIGHEST = 0.995
EVERY = slice(None)


class _Tenant:
    """A tenant's slices, and the levels of its ended requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[int] = []
        self.ended: Floats = np.zeros(len(LEVELS))

    def get_shares(self) -> Floats:
        """Return the weight of each level in the tenant's slices."""
        shares = self.ended + START_WEIGHT * START
        return np.asarray(TENANT_WEIGHT * shares / shares.sum())


class _Slices:
    """Knowledge of each slice: its curves, and the levels of its newest requests."""

    def __init__(self, depth: int, rows: int = 16) -> None:
        levels = len(LEVELS)
        self.rows = SliceRows()
        self._tenant_of: dict[int, _Tenant] = {}
        self._tenants: dict[str, _Tenant] = {}
        self.counts = np.zeros((rows, levels, 2 * depth))
        """Trials of each level and position, followed by successes."""
        self.evidence = np.zeros((rows, 2 * depth, levels))
        """Evidence on the level from a trial at each position, followed by the additional evidence
        from a success. A failure has the logarithm of 1 - conditional acceptance, a success that of
        acceptance."""
        self.survival = np.zeros((rows, levels, depth))
        self.ended = np.zeros((rows, levels))
        """Weight of each level among ended requests."""
        self.running = np.zeros((rows, levels))
        """Weight of each level among running requests."""
        self.base = np.zeros((rows, levels))
        """Weight of each level from the tenant's other requests."""
        self._observed = [0] * rows
        self._estimated = np.zeros((rows, depth))
        """Trials of each position behind the curves."""

    def take(self, tenant: str, traffic: str) -> int:
        """Return the row of a request's slice. ``rows.release`` it when the request ends."""
        row, is_new = self.rows.take(tenant, traffic)
        if is_new:
            self._begin(row, tenant)
        return row

    def _begin(self, row: int, name: str) -> None:
        """Begin a new slice of a tenant in a row that another slice may have had."""
        if row == len(self.ended):
            self._grow()
        if row in self._tenant_of:
            self._leave(row)
        tenant = self._tenant_of[row] = self._tenants.setdefault(name, _Tenant(name))
        tenant.rows.append(row)
        for table in (self.counts, self.ended, self.running, self._estimated):
            table[row] = 0.0
        self._observed[row] = 0
        self.base[row] = tenant.get_shares()
        self._estimate(row)

    def _leave(self, row: int) -> None:
        tenant = self._tenant_of.pop(row)
        tenant.rows.remove(row)
        if not tenant.rows and self._tenants.get(tenant.name) is tenant:
            del self._tenants[tenant.name]

    def forget(self, tenants: Collection[str]) -> None:
        self.rows.forget(tenants)
        for name in tenants:
            self._tenants.pop(name, None)

    def get_shares(self, row: int | Sequence[int]) -> Floats:
        """Return the weight of each level among the newest requests of a slice, running ones
        included."""
        return np.asarray(self.ended[row] + self.running[row] + self.base[row])

    def observe(self, row: int, levels: Floats, counts: Floats) -> None:
        """Learn from trials, followed by successes, of requests of one slice, in shape (requests, 2
        K).

        ``levels`` is the probability of each level for each request, in shape (requests, levels).
        """
        counts = levels.T @ counts
        totals = self.counts[row]
        totals *= np.maximum(1.0 - CURVE_LOSS * counts[:, :1], 0.0)
        totals += counts
        self._observed[row] += 1
        trials = totals[:, : self._estimated.shape[1]].sum(axis=0)
        is_new = bool((trials > 2 * self._estimated[row] + NEW_TRIALS).any())
        if is_new or self._observed[row] % CURVE_EVERY == 1:
            self._estimated[row] = trials
            self._estimate(row)

    def end(self, row: int, levels: Floats) -> None:
        """Record that a request with a known level has ended."""
        tenant = self._tenant_of[row]
        self.running[row] -= levels
        self.ended[row] = self.ended[row] * SLICE_MEMORY + levels
        tenant.ended = tenant.ended * TENANT_MEMORY + levels
        self.base[tenant.rows] = tenant.get_shares()

    def _estimate(self, row: int) -> None:
        """Estimate the curves. Acceptance falls from a position to the next in the same way at all
        levels, unless a level was tried itself. Where none was tried, it continues to fall as
        before."""
        trials, successes = np.split(self.counts[row].T, 2)  # each in shape (K, levels)
        curve = np.empty_like(trials)
        # Every estimate is the mean of a Beta posterior, (successes + weight x prior) / (trials +
        # weight), with the prior's weight in trials. A level is defined by its first position.
        curve[0] = (successes[0] + LEVEL_WEIGHT * LEVELS) / (trials[0] + LEVEL_WEIGHT)
        fall = 1.0
        for j in range(1, len(curve)):
            level_trials, level_successes, previous_levels = (
                trials[j],
                successes[j],
                curve[j - 1],
            )  # (levels,)
            # The fall is accepted / expected, pooled over the levels: most levels have few trials
            # at deep positions. Its prior is the fall before, so attention drift goes on.
            fall = (level_successes.sum() + FALL_WEIGHT * fall) / (
                level_trials @ previous_levels + FALL_WEIGHT
            )
            # Never a rise: only easy text reaches a deep position, so the ratio can exceed 1, and
            # would then raise every position that was not tried.
            prior = min(1.0, fall) * previous_levels
            curve[j] = (level_successes + CURVE_WEIGHT * prior) / (level_trials + CURVE_WEIGHT)
        curve = np.clip(curve.T, 0.005, HIGHEST)  # (levels, K); the logarithms below stay finite
        # Counts (trials, successes) @ evidence = log likelihood, because a success adds log(p)
        # and takes back the log(1 - p) that its trial has added.
        misses = SHARPNESS * np.log1p(-curve)
        self.evidence[row] = np.hstack([misses, SHARPNESS * np.log(curve) - misses]).T  # (2 K, ..)
        self.survival[row] = np.cumprod(curve, axis=1)

    def _grow(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, _double(value))
        self._observed += [0] * len(self._observed)


class SurvivalEstimator:
    """Estimator of survival per request and position, up to ``depth`` draft tokens."""

    def __init__(self, depth: int, rows: int = 64) -> None:
        self.depth = depth
        self._counts = np.zeros((rows, 4, depth))
        """Discounted trials and successes of each request and position, and the ones from which the
        levels have not been learnt yet."""
        self._waiting: set[int] = set()
        """Rows with counts that are not learnt yet."""
        self._slices = _Slices(depth)
        self._free = list(range(rows))[::-1]
        self._row: dict[str, int] = {}
        self._slice_of = np.zeros(rows, dtype=np.int64)
        self._age = [0] * rows
        self._evidence = np.zeros((rows, len(LEVELS)))
        """Log likelihood of each level given the request's trials."""
        self._levels = np.zeros((rows, len(LEVELS)))
        """Probability of each level for each request; zeros before its first trial."""
        self._widths: dict[str, list[int]] = {}
        """Chosen depths of requests by traffic, over all tenants."""
        self._traffic: dict[int, str] = {}
        """Traffic of each slice."""
        self._positions = np.arange(1, depth + 1)

    def __contains__(self, request: str) -> bool:
        return request in self._row

    def add(self, request: str, traffic: str = "", tenant: str = "") -> None:
        """Add a request. ``traffic`` names its slice within the tenant."""
        if not self._free:
            self._grow_requests()
        row = self._free.pop()
        self._row[request] = row
        self._counts[row] = 0.0
        self._evidence[row] = 0.0
        self._age[row] = 0
        self._slice_of[row] = self._take_slice(tenant, traffic)

    def move(self, request: str, traffic: str, tenant: str = "") -> None:
        """Move a request to another slice. Its own trials are kept."""
        row, new_slice = self._row[request], self._take_slice(tenant, traffic)
        old_slice = int(self._slice_of[row])
        self._slices.running[old_slice] -= self._levels[row]
        self._slices.running[new_slice] += self._levels[row]
        self._slices.rows.release(old_slice)
        self._slice_of[row] = new_slice

    def remove(self, request: str) -> None:
        """Remove an ended request. Unknown ones are ignored."""
        row = self._row.pop(request, None)
        if row is None:
            return
        if self._waiting:
            self._learn()
        self._free.append(row)
        slice_row = int(self._slice_of[row])
        if self._levels[row, 0]:
            self._slices.end(slice_row, self._levels[row])
            self._levels[row] = 0.0
        self._slices.rows.release(slice_row)

    def forget(self, tenants: Collection[str]) -> None:
        """Forget what these tenants' traffic has taught."""
        self._slices.forget(tenants)

    def observe(
        self,
        requests: Sequence[str],
        drafted: Sequence[Sequence[int]],
        accepted: Sequence[Sequence[int]],
    ) -> None:
        """Observe verify steps of the same requests: verified and accepted draft tokens of each, in
        shape (steps, requests). Older counts are discounted before the steps, not between them."""
        indices = [i for i, request in enumerate(requests) if request in self._row]
        rows, steps = [self._row[requests[i]] for i in indices], len(drafted)
        for row in rows:
            self._age[row] += steps
        if not rows or not any(map(any, drafted)):
            return
        pair = np.array([drafted, accepted])
        if len(indices) < len(requests):
            pair = pair[:, :, indices]
        np.minimum(pair[0], pair[1] + 1, out=pair[0])
        increments = (self._positions <= pair[..., None]).sum(axis=1).transpose(1, 0, 2)
        counts = self._counts[rows]
        counts[:, :2] *= REQUEST_MEMORY**steps
        counts[:, :2] += increments
        counts[:, 2:] += increments
        self._counts[rows] = counts
        self._waiting.update(rows)

    def _learn(self) -> None:
        """Learn the requests' levels and the levels' curves from the newest steps."""
        rows = np.array([*self._waiting])
        self._waiting.clear()
        counts = self._counts[rows].reshape(len(rows), 2, -1)
        self._counts[rows, 2:] = 0.0
        for row, places in self._group(rows):
            request_counts, slice_counts = counts[places].transpose(1, 0, 2)
            evidence = request_counts @ self._slices.evidence[row]
            members = rows[places]
            self._evidence[members] = evidence
            previous_levels = self._levels[members]
            levels = self._estimate_levels(row, evidence, previous_levels) * (
                request_counts[:, :1] > 0
            )
            self._levels[members] = levels
            self._slices.running[row] += (levels - previous_levels).sum(axis=0)
            self._slices.observe(row, levels, slice_counts)

    def _group(self, rows: Ints) -> list[tuple[int, Ints | slice]]:
        """Group requests by slice, as (slice, places of its requests in ``rows``)."""
        slices = self._slice_of[rows]
        groups = set(slices.tolist())
        if len(groups) == 1:
            return [(groups.pop(), EVERY)]
        return [(row, np.flatnonzero(slices == row)) for row in groups]

    def _estimate_levels(self, row: int, evidence: Floats, contribution: Floats) -> Floats:
        """Return the probability of each level for requests of one slice, in shape (requests,
        levels).

        ``contribution`` is their present contribution to the slice's shares.
        """
        prior = self._slices.get_shares(row) - contribution
        np.maximum(prior, 0.0, out=prior)
        prior *= (1 - UNSEEN) / prior.sum(axis=1, keepdims=True)
        prior += UNSEEN / len(LEVELS)
        prior *= np.exp(evidence - evidence.max(axis=1, keepdims=True))
        prior /= prior.sum(axis=1, keepdims=True)
        return prior

    def conditional(self, requests: Sequence[str]) -> Floats:
        """Return the conditional acceptance, in shape (requests, depth)."""
        if self._waiting:
            self._learn()
        rows = np.fromiter((self._row[request] for request in requests), np.int64, len(requests))
        all_levels = self._levels[rows]
        survival = np.empty((len(rows), self.depth))
        for row, places in self._group(rows):
            levels = all_levels[places]
            is_unknown = levels[:, 0] == 0.0
            if is_unknown.any():
                evidence = self._evidence[rows[places][is_unknown]]
                levels[is_unknown] = self._estimate_levels(row, evidence, levels[is_unknown])
            survival[places] = levels @ self._slices.survival[row]
        survival[:, 1:] /= survival[:, :-1].copy()
        counts = self._counts[rows]
        acceptance = counts[:, 1] + REQUEST_WEIGHT * survival
        acceptance /= counts[:, 0] + REQUEST_WEIGHT
        return np.asarray(np.minimum(acceptance, HIGHEST))

    def survival(self, requests: Sequence[str]) -> Floats:
        """Return the probability that draft token j is committed, in shape (requests, depth)."""
        survival: Floats = np.cumprod(self.conditional(requests), axis=1)
        return survival

    def count_widths(self, requests: Sequence[str], widths: Sequence[int], steps: int) -> None:
        """Count the chosen widths for ``steps`` steps, by traffic. Ended requests do not count."""
        for request, width in zip(requests, widths, strict=True):
            if (row := self._row.get(request)) is not None:
                self._widths[self._traffic[int(self._slice_of[row])]][width] += steps

    def trials(self, requests: Sequence[str]) -> Floats:
        """Return the discounted trials of the requests themselves, in shape (requests, depth)."""
        return self._counts[[self._row[request] for request in requests], 0]

    def age(self, requests: Sequence[str]) -> Ints:
        """Return the number of observed steps of each request."""
        return np.array([self._age[self._row[request]] for request in requests])

    def describe(self) -> list[dict[str, object]]:
        """Describe every kind of traffic, over all tenants: chosen depths, trials per position, and
        the share of them that was accepted."""
        rows = self._slices.rows.rows
        counts = {traffic: np.zeros((2, self.depth)) for traffic in self._widths}
        slice_counts = self._slices.counts[[*rows.values()]].sum(axis=1)
        for (_, traffic), row_counts in zip(rows, slice_counts, strict=True):
            counts[traffic] += row_counts.reshape(2, -1)
        return [
            {
                "traffic": traffic,
                "requests_by_depth": [*widths],
                "trials": counts[traffic][0].round(1).tolist(),
                "accepted": [
                    round(successes / trials, 3) if trials else None
                    for trials, successes in counts[traffic].T.tolist()
                ],
            }
            for traffic, widths in self._widths.items()
        ]

    def copy_slices(self) -> Callable[[], list[dict[str, object]]]:
        """Copy what is known of every slice. Return a function that describes the copies, later and
        in any thread: tenant, traffic, acceptance and trials per position."""
        names, rows = [*self._slices.rows.rows], [*self._slices.rows.rows.values()]
        shares, survival = self._slices.get_shares(rows), self._slices.survival[rows]
        trials = self._slices.counts[rows, :, : self.depth]

        def describe() -> list[dict[str, object]]:
            # The expectation of the next request of each slice, in shape (slices, depth).
            expected = (shares[:, None] @ survival)[:, 0] / shares.sum(axis=1, keepdims=True)
            expected[:, 1:] /= expected[:, :-1].copy()
            columns = expected.round(3).tolist(), trials.sum(axis=1).round(1).tolist()
            return [
                {
                    "tenant": tenant,
                    "traffic": traffic,
                    "conditional_acceptance": acceptance,
                    "trials": slice_trials,
                }
                for (tenant, traffic), acceptance, slice_trials in zip(names, *columns, strict=True)
            ]

        return describe

    def _take_slice(self, tenant: str, traffic: str) -> int:
        row = self._slices.take(tenant, traffic)
        self._traffic[row] = traffic
        self._widths.setdefault(traffic, [0] * (self.depth + 1))
        return row

    def _grow_requests(self) -> None:
        rows = len(self._age)
        self._counts = _double(self._counts)
        self._slice_of = _double(self._slice_of)
        self._evidence, self._levels = _double(self._evidence), _double(self._levels)
        self._age += [0] * rows
        self._free = list(range(rows, 2 * rows))[::-1]


def _double(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array with twice the rows. The new rows are zeros."""
    return np.concatenate([values, np.zeros_like(values)])
