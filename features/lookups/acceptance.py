"""Acceptance of lookups and of the draft model's tokens beside the same matches.

Both proposals are known at every step, and so are the tokens that were committed. Therefore both
are scored at every step, also the one that was not verified: a proposal is a point, so the target
accepts its next token exactly when it would have written that token. No step is spent on trials.

What is learnt belongs to one *slice* of one tenant's traffic and to the bucket of the match. The
last row of a slice is for steps without a match.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.slice_rows import SliceRows
from eaglegate.features.lookups.index import BUCKETS, KINDS

Floats = NDArray[np.float64]

ROWS = BUCKETS + 1
"""Rows of a slice: one for each bucket of matches, and one without a match."""
LENGTH_PRIOR = np.array([0.55, 0.72, 0.88, 0.94, 0.96])
"""Initial acceptance of a lookup's first token, by class of the match's length."""
KIND_PRIOR = np.array([1.0, 1.0, 0.8, 0.5])
"""Factor of it by kind of match."""
LOOKUP_WEIGHT = 3.0
"""Weight of these, in trials."""
DRAFT_PRIOR = 0.6
DRAFT_WEIGHT = 8.0
"""Weight of the draft's acceptance in the whole slice beside one kind of match, in trials."""
MEMORY = 400.0
"""Trials of a row and position after which older ones are halved, so that rows follow traffic."""
HIGHEST = 0.995
DEFAULT_PRICE = 0.02
"""Cost of one verified token, in tokens, until step times are known."""
MIN_LENGTHS = (3, 4, 8)
"""Shortest matches of the classes in which lookups are compared where only the length of a match is
known: 3, 4 to 7, and from 8."""
SURE = 0.7
"""Survival of a lookup's last token with which the next step will probably use one, too."""


class LookupAcceptance:
    """Counts of all slices, and the tables by which ``LookupChooser`` chooses.

    Everything that a step touches is a flat list of plain numbers: next to a model with cold
    caches a numpy call per request would take as long as the whole choice. ``refresh`` computes
    the tables of one slice.
    """

    def __init__(self, width: int, depth: int) -> None:
        """``width`` is the longest lookup, ``depth`` the greatest depth of the draft."""
        self.width, self.depth = width, depth
        self.price = DEFAULT_PRICE
        """Cost of one verified token, in tokens that the time would bring otherwise."""
        self._slices = SliceRows()
        self._changed_rows: set[int] = set()
        self._lookup_counts: list[float] = []
        self._draft_counts: list[float] = []
        """Per row: steps by trials, then steps by hits, each from 0 to ``width`` or ``depth``."""
        self.lookup_values: list[float] = []
        """Per row and width: expected tokens of a lookup, less the price of its verification."""
        self.draft_values: list[float] = []
        """The same of the draft, per row and depth."""
        self.lookup_widths: list[int] = []
        """Per row: tokens of a lookup that are worth verifying."""
        self.sure: list[bool] = []
        self._length_counts: dict[int, tuple[Floats, Floats, Floats, float]] = {}
        """Per slice's first row: what its ``_length_values`` follow from."""
        self._length_values: dict[int, tuple[Floats, Floats]] = {}
        """Per slice's first row: values of lookups and drafts by class of ``MIN_LENGTHS``. They are
        computed when they are asked for, which the first model runner never does."""

    def take_slice(self, traffic: str, tenant: str) -> int:
        """Return the first row of a request's slice. ``release_slice`` it when the request ends."""
        number, is_new = self._slices.take(tenant, traffic)
        row = number * ROWS
        if is_new:
            for table, size in (
                (self._lookup_counts, 2 * (self.width + 1)),
                (self._draft_counts, 2 * (self.depth + 1)),
                (self.lookup_values, self.width + 1),
                (self.draft_values, self.depth + 1),
            ):
                table[row * size : (row + ROWS) * size] = [0.0] * (ROWS * size)
            self.lookup_widths[row : row + ROWS] = [0] * ROWS
            self.sure[row : row + ROWS] = [False] * ROWS
            self._estimate(row)
        return row

    def release_slice(self, row: int) -> None:
        self._slices.release(row // ROWS)

    def forget(self, tenants: Collection[str]) -> None:
        """Forget what these tenants' traffic has taught."""
        self._slices.forget(tenants)

    def score_lookup(self, row: int, trials: int, hits: int) -> None:
        """Count a lookup whose first ``hits`` of ``trials`` compared tokens were committed."""
        start = 2 * row * (self.width + 1)
        self._lookup_counts[start + trials] += 1
        self._lookup_counts[start + self.width + 1 + hits] += 1
        self._changed_rows.add(row - row % ROWS)

    def score_draft(self, row: int, trials: int, hits: int) -> None:
        """Count a draft, verified or not, in the same way."""
        start = 2 * row * (self.depth + 1)
        self._draft_counts[start + trials] += 1
        self._draft_counts[start + self.depth + 1 + hits] += 1
        self._changed_rows.add(row - row % ROWS)

    def forget_draft(self) -> None:
        """Forget the draft's acceptance, because another draft serves."""
        self._draft_counts[:] = [0.0] * len(self._draft_counts)
        self._changed_rows.update(row * ROWS for row in self._slices.rows.values())

    def refresh(self) -> None:
        """Compute the tables of one slice that has changed."""
        if self._changed_rows:
            self._estimate(self._changed_rows.pop())

    def _estimate(self, row: int) -> None:
        """Compute the tables of the slice whose first row this is."""
        width, depth = self.width, self.depth
        lookups = self._count(self._lookup_counts, row, width)
        drafts = self._count(self._draft_counts, row, depth)
        first = LENGTH_PRIOR.repeat(KINDS) * np.tile(KIND_PRIOR, len(LENGTH_PRIOR))
        prior = np.full((ROWS, width), 0.01)
        prior[:-1, 0] = first
        prior[:-1, 1:] = np.minimum(first + 0.05, 0.97)[:, None]
        lookup_survival = _estimate_survival(lookups, prior, LOOKUP_WEIGHT)
        pooled = drafts.sum(axis=1)  # (2, depth), all rows
        slice_mean = (pooled[1] + DRAFT_WEIGHT * DRAFT_PRIOR) / (pooled[0] + DRAFT_WEIGHT)
        draft_survival = _estimate_survival(
            drafts, np.broadcast_to(slice_mean, (ROWS, depth)), DRAFT_WEIGHT
        )
        lookup_values = _add_up(lookup_survival, self.price)
        self._store(self.lookup_values, row, width, lookup_values)
        self._store(self.draft_values, row, depth, _add_up(draft_survival, self.price))
        widths = lookup_values.argmax(axis=1)
        self.lookup_widths[row : row + ROWS] = widths.tolist()
        last_survival = lookup_survival[np.arange(ROWS), np.maximum(widths - 1, 0)]
        self.sure[row : row + ROWS] = ((widths > 0) & (last_survival > SURE)).tolist()
        self._length_counts[row] = lookups, drafts, slice_mean, self.price
        self._length_values.pop(row, None)

    def find_min_length(self, row: int, width: int, depth: int) -> int | None:
        """Return the length from which a match's lookup of ``width`` tokens is worth more than
        ``depth`` of the draft's, whatever its kind; None if no length is. ``row`` is the slice's
        first one."""
        if row not in self._length_values:
            self._length_values[row] = _value_lengths(*self._length_counts[row])
        lookups, drafts = self._length_values[row]
        shortest = None
        for length, lookup, draft in zip(
            reversed(MIN_LENGTHS), lookups[::-1, width].tolist(), drafts[::-1, depth].tolist(),
            strict=True,
        ):  # fmt: skip
            if lookup <= draft:
                break
            shortest = length
        return shortest

    def _count(self, counts: list[float], row: int, width: int) -> Floats:
        """Return trials and hits by position, in shape (2, ROWS, width). Old counts are halved."""
        part = slice(2 * row * (width + 1), 2 * (row + ROWS) * (width + 1))
        steps = np.array(counts[part]).reshape(ROWS, 2, width + 1)
        full_rows = steps[:, 0].sum(axis=1) > MEMORY
        if full_rows.any():
            steps[full_rows] /= 2
            counts[part] = steps.ravel().tolist()
        # Steps that reach at least each position: sums from the end.
        reached = steps[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
        return np.asarray(reached[:, :, 1:].transpose(1, 0, 2))

    def _store(self, table: list[float], row: int, width: int, values: Floats) -> None:
        table[row * (width + 1) : (row + ROWS) * (width + 1)] = values.ravel().tolist()


def _value_lengths(
    lookups: Floats, drafts: Floats, slice_mean: Floats, price: float
) -> tuple[Floats, Floats]:
    """Return the values of lookups and drafts by class, in shape (3, width + 1) each."""
    draft_prior = np.broadcast_to(slice_mean, (len(MIN_LENGTHS), len(slice_mean)))
    lookup_survival = _estimate_survival(
        _pool(lookups), _pool_prior(lookups.shape[2]), LOOKUP_WEIGHT
    )
    draft_survival = _estimate_survival(_pool(drafts), draft_prior, DRAFT_WEIGHT)
    return _add_up(lookup_survival, price), _add_up(draft_survival, price)


def _pool(counts: Floats) -> Floats:
    """Return counts by class of ``MIN_LENGTHS`` from those of all rows, in shape (2, 3, width)."""
    by_length = counts[:, :-1].reshape(2, -1, KINDS, counts.shape[2]).sum(axis=2)
    return np.concatenate([by_length[:, :2], by_length[:, 2:].sum(axis=1, keepdims=True)], axis=1)


def _pool_prior(width: int) -> Floats:
    """Return the initial acceptance of lookups by class, with the factor of the mean kind."""
    first = LENGTH_PRIOR[: len(MIN_LENGTHS), None] * KIND_PRIOR.mean()
    prior = np.hstack([first, np.repeat(first + 0.05, width - 1, axis=1)])
    return np.asarray(np.minimum(prior, 0.97))


def _estimate_survival(counts: Floats, prior: Floats, weight: float) -> Floats:
    """Return the survival in shape (ROWS, positions), from (trials, hits) and the prior mean."""
    conditional = (counts[1] + weight * prior) / (counts[0] + weight)
    return np.cumprod(np.minimum(conditional, HIGHEST), axis=1)


def _add_up(survival: Floats, price: float) -> Floats:
    """Return expected tokens less the price, at every width from 0, in shape (ROWS, width + 1)."""
    values = np.zeros((len(survival), survival.shape[1] + 1))
    np.cumsum(survival - price, axis=1, out=values[:, 1:])
    return values
