"""Time of a step, learnt from the newest times of steps of every kind.

seconds = speed x correction x (fixed + request B + verified_token V + drafting [K > 0] + depth K
          + depth_and_request K B + verifying [V > 0] + prompt [P > 0] + prompt_token P
          + sum of knee_n max(0, B + V - n)),

with the weights of ``StepTerms``, for B requests, V verified draft tokens, K draft tokens made for
each request after verifying, and P prompt tokens read in the same step. If the depth changes,
making drafts and verifying them happen in different steps, so each has a fixed part. Up to a number
of tokens a step takes the time to read the weights, and beyond it the time to compute. The knee
terms follow that as a convex, piecewise linear function. With CUDA graphs (step_graphs.py) B + V is
the padded size of the step, and two more weights are the extra times of a step with PIECEWISE
graphs and of a step without graphs.

Steps of about the same content share a *cell*, which keeps its newest times. Their median is what
the model believes of the cell, so that no single outlier counts and every belief ends after a few
other times, however wrong it was. The weights are a least squares fit to the medians. Old cells
weigh less. A correction per batch size and depth covers what the fit does not explain.

The *speed* of the machine is the median of the newest steps' times over their expectation. A run of
equal steps teaches its cell by its first steps, and the speed by the others. So the difference
between two kinds of steps is learnt where one follows the other, and a machine that slows down does
not make the depth in use look worse than others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from operator import mul
from statistics import median, median_low
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.step_graphs import GraphMode, StepGraphs

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Row = list[float]
Cell = tuple[int, int, int, int, int]
"""Classes of batch size, verified tokens and prompt tokens, with the depth and the graph mode."""

KNEES = (128, 256, 512)
"""Tokens of a step beyond which each may take longer. An H100 changes from reading weights to
computing at about 200 to 300 tokens (``GpuTable`` in tests/engine/speculation/serving_sim.py)."""


class StepTerms(NamedTuple):
    """One number for each term of the model: its weight, or its feature in one step.

    The last two terms exist only with CUDA graphs.
    """

    fixed: float
    request: float
    verified_token: float
    drafting: float
    depth: float
    depth_and_request: float
    verifying: float
    prompt: float
    prompt_token: float
    knee_128: float
    knee_256: float
    knee_512: float
    piecewise: float = 0.0
    no_graph: float = 0.0


GUESS = StepTerms(
    fixed=1.0,
    request=0.01,
    verified_token=0.01,
    drafting=0.01,
    depth=0.06,
    depth_and_request=0.002,
    verifying=0.01,
    prompt=0.1,
    prompt_token=0.01,
    knee_128=0.001,
    knee_256=0.001,
    knee_512=0.001,
    piecewise=0.05,
    no_graph=0.2,
)
"""Weights before any step was seen, in units of a step of one request without a draft. vLLM's
authors measured 1 % (8B, dense) to 47 % (30B with 3B active) more time for PIECEWISE (pull requests
16072, 21477 and 25444)."""
NUM_GRAPH_TERMS = 2
PRIOR = 0.05
"""Precision of the guesses, relative to the guesses: they may be wrong by a few times."""
LEAST = 1e-3
"""Least weight, relative to its guess."""
NOISE = 0.1
"""Typical relative error of a step time."""
MISFIT = 0.03
"""Typical relative error of the fit."""
WINDOW = 9
"""Newest times that a cell keeps. With fewer, every step teaches the cell and none the speed, which
would absorb the error of a median of few times for good."""
KNOWN = 3
"""Times from which a cell's median counts. The same number of first steps of a run teach it."""
RUN = 8
"""Of the further steps of a run, every eighth teaches the cell."""
SPEED_WINDOW = 15
"""Steps whose median is the speed: more than twice ``KNOWN``, so that a change of the depth moves a
cell before it moves the speed."""
CHANGE = 0.06
"""Difference of that median from the speed, as a logarithm, after which the speed follows it until
all steps of the median are newer. A speed that followed noise would take along the cells in use,
away from the others."""
SURPRISE = 0.2
"""Difference from the expected time, as a logarithm, after which the weights are fitted at once."""
FIT_EVERY = 16
"""Most times learnt until the weights are fitted again; fewer at the start."""
AGE = 300.0
"""Steps in which the weight of a cell falls to 1/e. A cell that has changed by a surprise makes the
others older by as much."""
STALE = 128
"""Steps after which a cell's times do not count beside a new one that is a surprise."""
OLDEST = 0.03
"""Weight that a cell keeps however old it is: it knows more than the guesses."""
TIMED = 2.0
"""Weight of a batch size's mean correction in that of one depth, in times. A depth with fewer times
counts as unknown."""
SIZES = 12
"""Number of classes of batch sizes, by powers of two."""
CELLS = 128
"""Most cells. The oldest is forgotten."""


class ObservedStep(NamedTuple):
    """Content of one scheduler step, and its time in seconds."""

    batch: int
    """Number of decoding requests."""
    verified: int
    """Number of verified draft tokens of all requests."""
    depth: int
    """Number of draft tokens made for each request."""
    seconds: float
    prompt: int = 0
    """Number of prompt tokens of other requests, read in the same step."""
    mode: GraphMode = GraphMode.FULL


class StepCostModel:
    """Model of the seconds of a decode step.

    Steps with a piece of a prompt teach only the weights, not a correction. If prompts arrive all
    the time, there are few other steps.
    """

    def __init__(
        self,
        depth: int,
        always_full: bool = False,
        base_s: float | None = None,
        lookup: bool = False,
        graphs: StepGraphs | None = None,
    ) -> None:
        """Start with guesses. ``base_s``: seconds of a step of one request without a draft; None
        until observed.

        With ``always_full``, a step with any draft drafts ``depth`` tokens
        (``methods.StepDepth.FULL``). With ``lookup``, the number of verified tokens does not follow
        from the depth. Steps that verify any then teach only the weights, and every depth has the
        correction of depth 0. ``graphs`` is None if steps run without them, as on CPUs.
        """
        self.depth = depth
        self._lookup = lookup
        self.graphs = graphs
        self._guess = np.array(GUESS[:-NUM_GRAPH_TERMS] if graphs is None else GUESS)
        self._drafted = [depth if always_full and k else k for k in range(depth + 1)]
        """Number of draft tokens made at every planned depth."""
        self._corrected = [0] * (depth + 1) if lookup else self._drafted
        """Depth whose correction applies at every planned depth."""
        self.steps = 0
        self._unit = base_s
        self._weights: Row = (self._guess * (base_s or 1.0)).tolist()
        """Seconds of every term, in the order of ``StepTerms``, at speed 1."""
        self._speeds: deque[float] = deque(maxlen=SPEED_WINDOW)
        """Times of the newest steps over their expectation at speed 1, as logarithms."""
        self._speed = 0.0
        """Logarithm of the machine's slowness."""
        self._unsettled = SPEED_WINDOW
        """Further steps in which the speed follows the median."""
        self._rows: dict[Cell, int] = {}
        """Row of each cell, the oldest cell first."""
        self._features = np.zeros((CELLS, len(self._guess)))
        """Mean features of the newest steps of every cell."""
        self._medians = np.zeros(CELLS)
        """Median of the newest times of every cell, at speed 1."""
        self._stamps = np.zeros(CELLS)
        """Step at which each cell was last seen."""
        self._kept: list[deque[ObservedStep]] = [deque(maxlen=WINDOW) for _ in range(CELLS)]
        """Newest steps of every cell."""
        self._places = np.zeros(CELLS, dtype=np.int64)
        """Index of each cell's correction; that behind the last one if it has none."""
        self._levels: Row = [0.0] * CELLS
        """Logarithm of each cell's median over the fit."""
        self._corrections: list[Row] = [[0.0] * (depth + 1) for _ in range(SIZES)]
        """Logarithm of the time over the fit, by class of batch size and depth."""
        self._timed = np.zeros((SIZES, depth + 1))
        """Times that are known by class of batch size and depth; old ones count less."""
        self._last_cell: Cell | None = None
        self._run = 0
        """Steps of the last cell in a row."""
        self._unfitted = 0
        """Times that the weights do not follow yet."""

    @property
    def prompt_token_s(self) -> float:
        """Additional seconds of a step for each prompt token; 0 until observed."""
        return self._terms.prompt_token * math.exp(self._speed) if self.is_known else 0.0

    @property
    def is_known(self) -> bool:
        return self._unit is not None

    @property
    def _terms(self) -> StepTerms:
        return StepTerms(*self._weights)

    def observe(self, step: ObservedStep) -> tuple[float, float]:
        """Learn from the time of one step. Returns its expected and its actual seconds."""
        seconds = step.seconds
        if seconds <= 0 or step.batch <= 0:
            return 0.0, 0.0
        features = self._describe(step)
        if self._unit is None:
            self._set_unit(seconds / _dot(features, self._guess.tolist()))
        cell = _classify_step(step)
        row = self._find_row(cell, step)
        count = len(self._kept[row])
        level = self._levels[row] if count >= KNOWN else self._correct(step)
        base_s = _dot(features, self._weights) * math.exp(level)
        expected_s = base_s * math.exp(self._speed)
        self._run = self._run + 1 if cell == self._last_cell else 0
        self._last_cell = cell
        self.steps += 1
        if count >= WINDOW:
            self._speeds.append(math.log(seconds / base_s))
            speed = median(self._speeds)
            if abs(speed - self._speed) > CHANGE:
                self._unsettled = SPEED_WINDOW
            if self._unsettled:
                self._speed, self._unsettled = speed, self._unsettled - 1
        if count < WINDOW or self._run < KNOWN or self._run % RUN == 0:
            is_surprise = abs(math.log(seconds / base_s) - self._speed) > SURPRISE
            if is_surprise and self.steps - self._stamps[row] > STALE:
                self._kept[row].clear()
            self._save(row, features, step._replace(seconds=seconds * math.exp(-self._speed)))
            if is_surprise or self._unfitted >= min(FIT_EVERY, 1 + self.steps // FIT_EVERY):
                self._fit(row)
        return expected_s, seconds

    def _find_row(self, cell: Cell, step: ObservedStep) -> int:
        """Return the row of a cell, which is now the newest one."""
        row = self._rows.pop(cell, None)
        if row is None:
            full = len(self._rows) == CELLS
            row = self._rows.pop(next(iter(self._rows))) if full else len(self._rows)
            self._kept[row].clear()
            self._places[row] = self._find_place(step)
        self._rows[cell] = row
        return row

    def _find_place(self, step: ObservedStep) -> int:
        """Return the index of the correction that a step teaches.

        A step that only verifies occurs when the depth changes, and has the correction of its
        drafts. One that verifies few drafts, as after a probe, is typical of no depth.
        """
        batch, num_verified, depth, _, prompt, _ = step
        is_probe = 2 * num_verified < max(depth, num_verified > 0) * batch
        if prompt or (num_verified if self._lookup else is_probe):
            return SIZES * (self.depth + 1)
        return _size_class(batch) * (self.depth + 1) + self._find_depth(step)

    def _save(self, row: int, features: Row, step: ObservedStep) -> None:
        kept = self._kept[row]
        kept.append(step)
        self._medians[row] = median_low([step.seconds for step in kept])
        self._features[row] += (features - self._features[row]) / len(kept)
        self._stamps[row] = self.steps
        self._unfitted += 1

    def _fit(self, changed_row: int | None = None) -> None:
        """Fit the weights to the cells' medians, and the corrections to what is left."""
        self._unfitted = 0
        if not self._rows:
            return
        num_cells, sizes = len(self._rows), self._places[: len(self._rows)] // (self.depth + 1)
        counts = np.array([len(self._kept[row]) for row in range(num_cells)])
        features, expected = self._features[:num_cells], self._features[:num_cells] @ self._weights
        # One or two times may both be outliers, unless the size of the batch is new. The class of
        # cells without a correction is the last one.
        is_new = np.append(self._timed.sum(axis=1) < WINDOW, False)[sizes]
        doubt = np.where((counts >= KNOWN) | is_new, np.inf, math.exp(SURPRISE))
        medians = np.clip(self._medians[:num_cells], expected / doubt, expected * doubt)
        if changed_row is not None:
            level = math.log(medians[changed_row] / _dot(features[changed_row], self._weights))
            if abs(level - self._levels[changed_row]) > SURPRISE:
                others = self._stamps[:num_cells] < self.steps - 2 * RUN
                self._stamps[:num_cells][others] -= 3 * AGE
        ages = np.exp((self._stamps[:num_cells] - self.steps) / AGE)
        precisions = (ages + OLDEST) / (NOISE**2 / counts + MISFIT**2)
        scale = self._guess * np.median(medians / (features @ self._guess))
        # Errors are relative to the longer of the time and its expectation. An old cell that says a
        # twentieth would otherwise outvote all others.
        units = np.maximum(medians, expected)
        weights = scale * _solve(features * scale / units[:, None], medians / units, precisions)
        levels = np.log(medians / (features @ weights))
        self._weights, self._levels[:num_cells] = weights.tolist(), levels.tolist()
        self._fit_corrections(levels, counts * ages)

    def _fit_corrections(self, levels: Floats, weights: Floats) -> None:
        """Estimate the corrections by the weighted mean of the cells' levels."""
        places, num_places = self._places[: len(levels)], SIZES * (self.depth + 1)
        shape = SIZES, self.depth + 1
        timed, sums = (
            np.asarray(np.bincount(places, values, num_places + 1)[:-1].reshape(shape), np.float64)
            for values in (weights, weights * levels)
        )
        # Shrinkage to the mean of the batch size: an untimed depth has the correction of its
        # neighbours, and is not chosen by default.
        means = sums.sum(axis=1) / (timed.sum(axis=1) + TIMED / 4)
        corrections = (sums + TIMED * means[:, None]) / (timed + TIMED)
        self._corrections = corrections.tolist()
        self._timed = timed

    def _correct(self, step: ObservedStep) -> float:
        """Return the correction of a step, as a logarithm."""
        if step.prompt:
            return 0.0
        return self._corrections[_size_class(step.batch)][self._find_depth(step)]

    def seconds(self, batch: int, widths: Floats) -> Floats:
        """Return the expected seconds at every depth 0 .. K, with ``widths`` draft tokens at each
        depth, the same number for each request.

        This is the cost in the long run, in which a step that drafts also verifies.
        """
        if self.graphs is None:
            return self._estimate(batch, widths)
        modes = [self.graphs.find_mode([depth] * batch) for depth in range(self.depth + 1)]
        padded_widths = [self.graphs.pad(batch + tokens) - batch for tokens in widths.tolist()]
        extra = [self.get_extra_s(batch, mode) for mode in modes]
        return self._estimate(batch, np.array(padded_widths)) + extra

    def mixed_seconds(self, batch: int, verified: Floats) -> Floats:
        """Return the expected seconds at every depth if each request verifies the tokens that pay,
        so that several requests have no FULL graph. ``verified`` has the shape (K + 1, ...)."""
        seconds = self._estimate(batch, verified)
        if self.graphs is None or batch == 1:
            return seconds
        return seconds + self.get_extra_s(batch, GraphMode.PIECEWISE)

    def _estimate(self, batch: int, verified: Floats) -> Floats:
        """Return the same as ``mixed_seconds``, with FULL graphs."""
        w, tokens = self._terms, batch + verified
        # In the long run every step that drafts also verifies, so it pays both fixed parts.
        fixed_part, overhead = w.fixed + w.request * batch, w.drafting + w.verifying
        per_depth = w.depth + w.depth_and_request * batch
        base = [fixed_part + overhead * (k > 0) + per_depth * k for k in self._drafted]
        seconds: Floats = (np.array(base) + (w.verified_token * verified).T).T
        if tokens.max() > KNEES[0]:
            for knee, weight in zip(KNEES, (w.knee_128, w.knee_256, w.knee_512), strict=True):
                seconds += weight * np.maximum(tokens - knee, 0.0)
        return (seconds.T * self._factors(batch)).T

    def _factors(self, batch: int) -> Floats:
        """Return the speed times the correction at every depth."""
        corrections = self._corrections[_size_class(batch)]
        return np.exp(self._speed + np.array([corrections[k] for k in self._corrected]))

    def get_extra_s(self, batch: int, mode: GraphMode) -> float:  # noqa: ARG002
        """Return the expected seconds that a step takes longer than with a FULL graph."""
        if mode is GraphMode.FULL or self.graphs is None:
            return 0.0
        terms = self._terms
        weight = terms.piecewise if mode is GraphMode.PIECEWISE else terms.no_graph
        return weight * math.exp(self._speed)

    def estimate(self, widths: Ints, depth: int, found: float | None = None) -> float:
        """Return the expected seconds of a step that verifies ``widths`` and makes ``depth`` draft
        tokens for each request. ``found`` is the number of tokens of ``widths`` that exist; None
        for all."""
        batch, mode = len(widths), GraphMode.FULL
        num_verified = float(widths.sum()) if found is None else found
        if self.graphs is not None:
            mode = self.graphs.find_mode(widths.tolist())
            num_verified = self.graphs.pad(batch + num_verified) - batch
        seconds = self._estimate(batch, np.full(self.depth + 1, num_verified))[depth]
        return float(seconds) + self.get_extra_s(batch, mode)

    def per_token(self, batch: int, num_verified: float = 0.0) -> float:
        """Return the expected seconds of one more verified draft token beside ``num_verified``."""
        terms = self._terms
        weight = terms.verified_token
        for knee, beyond in zip(
            KNEES, (terms.knee_128, terms.knee_256, terms.knee_512), strict=True
        ):
            weight += beyond * (batch + num_verified >= knee)
        return weight * math.exp(self._speed)

    def steps_at(self, batch: int) -> Floats:
        """Return the number of known times at every depth with about this many requests. Old times
        count less."""
        return np.asarray(self._timed[_size_class(batch), self._corrected])

    def describe(self) -> dict[str, object]:
        factor = 1e3 * math.exp(self._speed) * self.is_known
        return {
            "steps": self.steps,
            "milliseconds": {
                name: round(weight * factor, 4)
                for name, weight in zip(StepTerms._fields, self._weights, strict=False)
            }
            if self.is_known
            else None,
            "table": self.tabulate(),
        }

    def tabulate(self) -> dict[str, object] | None:
        """Return the milliseconds of a step in which every request drafts and verifies the same
        number of tokens, by batch size and depth, with the number of times that are known; None
        until a step is.

        Batch sizes are powers of two, up to the largest size seen. `eaglegate drafts compare
        --cost-table` reads the table.
        """
        if not self._timed.any():
            return None
        batches = [1 << size for size in range(int(np.flatnonzero(self._timed.sum(axis=1)).max()))]
        drafted = np.array(self._drafted, dtype=np.float64)
        return {
            "batches": batches,
            "depths": list(range(self.depth + 1)),
            "step_ms": [
                (1e3 * self.seconds(batch, batch * drafted)).round(4).tolist() for batch in batches
            ],
            "steps": [self._count_times(_size_class(batch)) for batch in batches],
        }

    def _count_times(self, size: int) -> list[int]:
        """Count the times that the cells keep, at every depth of one class of batch sizes."""
        counts = [0] * (self.depth + 1)
        for row in self._rows.values():
            kept_size, depth = divmod(int(self._places[row]), self.depth + 1)
            if kept_size == size:
                counts[depth] += len(self._kept[row])
        return counts

    def export(self) -> dict[str, object]:
        """Export what was learnt as the newest steps of every cell, for ``restore``."""
        self._fit()
        kept = [step for row in self._rows.values() for step in self._kept[row]]
        steps = [[*step[:-1], int(step.mode)] for step in kept]
        return {"depth": self.depth, "count": self.steps, "speed": self._speed, "steps": steps}

    def restore(self, state: Mapping[str, object]) -> bool:
        """Restore what another model exported.

        Returns False and changes nothing if it does not fit: it has another depth, or values that
        are not numbers.
        """
        rows, count, speed = (state.get(name) for name in ("steps", "count", "speed"))
        if state.get("depth") != self.depth or not isinstance(rows, list) or not rows:
            return False
        if not isinstance(count, int) or not _is_number(speed):
            return False
        if not all(_is_step(row, self.depth) for row in rows):
            return False
        self.steps, self._speed = count, speed
        for row in rows:
            step = ObservedStep(*row)._replace(mode=GraphMode(row[-1]))
            self._save(self._find_row(_classify_step(step), step), self._describe(step), step)
        if self._unit is None:
            self._set_unit(min(row[3] for row in rows))
        self._fit()
        return True

    def _set_unit(self, seconds: float) -> None:
        """Set the unit of the guesses."""
        self._unit = seconds
        self._weights = (self._guess * seconds).tolist()

    def _describe(self, step: ObservedStep) -> Row:
        """Describe a step as the features of the weights. A prompt's weight includes the missing
        FULL graph."""
        batch, num_verified, depth, _, prompt, mode = step
        tokens: float = batch + num_verified
        if self.graphs is not None and not prompt:
            tokens = self.graphs.pad(tokens)
        features = StepTerms(
            1.0,
            batch,
            tokens - batch,
            depth > 0,
            depth,
            depth * batch,
            num_verified > 0,
            prompt > 0,
            prompt,
            max(tokens - KNEES[0], 0),
            max(tokens - KNEES[1], 0),
            max(tokens - KNEES[2], 0),
            mode is GraphMode.PIECEWISE and not prompt,
            mode is GraphMode.NONE and not prompt,
        )
        return [*features[: len(self._guess)]]

    def _find_depth(self, step: ObservedStep) -> int:
        """Return the depth whose correction a step has. A step that only verifies has that of its
        drafts."""
        if self._lookup:
            return 0
        if step.depth or not step.verified:
            return step.depth
        return min(self.depth, max(1, round(step.verified / step.batch)))


def _solve(features: Floats, times: Floats, precisions: Floats) -> Floats:
    """Return the weights, none below ``LEAST``, whose products with ``features`` are closest to
    ``times``.

    The prior of every weight is one. No part of a step takes negative time: noise could otherwise
    make a deeper draft look cheaper than a shallow one, and verified tokens free.
    """
    weighted = features * precisions[:, None]
    normal = weighted.T @ features + PRIOR * np.eye(features.shape[1])
    target = times @ weighted + PRIOR
    weights = np.full(len(target), LEAST)
    positive = np.arange(len(target))
    while len(positive):
        solution = np.linalg.solve(normal[np.ix_(positive, positive)], target[positive])
        if solution.min() >= 0.0:
            weights[positive] += solution
            break
        positive = positive[solution > 0.0]
    return weights


def _is_step(row: object, max_depth: int) -> bool:
    """Return True if ``row`` has the numbers of an observed step."""
    if not isinstance(row, list) or len(row) != len(ObservedStep._fields):
        return False
    if not all(map(_is_number, row)):
        return False
    batch, verified, depth, seconds, prompt, mode = row
    is_possible = batch > 0 and seconds > 0 and min(verified, depth, prompt) >= 0
    return is_possible and depth <= max_depth and mode in [*GraphMode]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _dot(row: Iterable[float], column: Iterable[float]) -> float:
    product: float = sum(map(mul, row, column))
    return product


def _classify_step(step: ObservedStep) -> Cell:
    batch, verified, depth, _, prompt, mode = step
    return _classify(batch), _classify(verified), _classify(prompt), depth, int(mode)


def _classify(count: int) -> int:
    """Return the class of a number, two for each power of two; -1 for none."""
    return round(2 * math.log2(count)) if count else -1


def _size_class(batch: int) -> int:
    return min(batch.bit_length(), SIZES - 1)
