"""Time of a step, learnt from step times: linear in the step's work and its graph mode.

seconds = speed x (fixed + request B + verified_token V + drafting [K > 0] + depth K
                   + depth_and_request K B + verifying [V > 0] + prompt [P > 0] + prompt_token P),

with the weights of ``StepTerms``, for B requests, V verified draft tokens, K draft tokens made for
each request after verifying, and P prompt tokens read in the same step. If the depth changes,
making drafts and verifying them happen in different steps, so each has a fixed part. With CUDA
graphs (step_graphs.py) B + V is the padded size of the step, and two more weights are the extra
times of a step with PIECEWISE graphs and of a step without graphs.

Weights and speed are the state of an extended Kalman filter (Kalman, J. Basic Engineering 82, 1960)
on the logarithm of a step's time. The speed may change fast, the weights slowly, so that a machine
that slows down does not make the depth in use look worse than others. Small corrections per batch
size and depth cover the nonlinear part. For the same reason, a depth that was rarely seen with a
batch size takes the correction of the depths that were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.step_graphs import GraphMode, StepGraphs

Floats = NDArray[np.floating[Any]]
Row = list[float]


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
    piecewise=0.05,
    no_graph=0.2,
)
"""Initial weights, in units of a step of one request without a draft. vLLM's authors measured 1 %
(8B, dense) to 47 % (30B with 3B active) more time for PIECEWISE (pull requests 16072, 21477 and
25444)."""
NUM_GRAPH_TERMS = 2
NOISE = 0.1
"""Typical relative error of a step time."""
WEIGHT_DRIFT = 0.002
"""Drift of a weight in a step, relative to the larger of the weight and its guess."""
SPEED_DRIFT = 0.03
"""Drift of the speed in a step, as a logarithm."""
HUBER = 0.2
"""Limit on residuals, as logarithms. Outliers beyond it have the effect of the limit."""
TIMED = 8
"""Steps after which the time at a depth counts as known, with half its correction from its own
steps."""
TOGETHER = 4
"""Number of consecutive steps of the same kind that are learnt together."""
CELL_GAIN = 0.02
"""Least share of a residual that the correction of a batch size and depth takes. New ones take
more."""
WIDEST = 0.4
"""Largest correction of a cell, as a logarithm."""
SIZES = 12
"""Number of classes of batch sizes, by powers of two."""
LEARNT = (
    "steps",
    "_unit",
    "_weights",
    "_speed",
    "_covariance",
    "_sizes",
    "_size_steps",
    "_cells",
    "_cell_steps",
    "_shrunk",
)
"""Fields that are exported to another model."""


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

    Steps with a piece of a prompt teach only the weights, not the correction of a cell. If prompts
    arrive all the time, there are few other steps.
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
        self._guess: tuple[float, ...] = GUESS[:-NUM_GRAPH_TERMS] if graphs is None else GUESS
        self._drafted = [depth if always_full and k else k for k in range(depth + 1)]
        """Number of draft tokens made at every planned depth."""
        self._corrected = [0] * (depth + 1) if lookup else self._drafted
        """Depth whose correction applies at every planned depth."""
        self.steps = 0
        self._unit = base_s
        self._weights: Row = [*self._guess]
        """The weights, in the order of ``StepTerms``. A list, because it is exported as JSON."""
        self._speed = 0.0
        """Logarithm of the machine's speed, relative to ``_unit``."""
        # The speed starts without variance, because the first step sets ``_unit``. Its error is
        # the weights' error.
        deviations = *(2 * guess for guess in self._guess), 0.0
        self._covariance = [
            [deviation**2 if i == j else 0.0 for j in range(len(deviations))]
            for i, deviation in enumerate(deviations)
        ]
        """Covariance of the weights and the speed, in shape (n + 1, n + 1) for n weights."""
        self._sizes = [0.0] * SIZES
        self._size_steps = [0] * SIZES
        self._cells = [[0.0] * (depth + 1) for _ in range(SIZES)]
        self._cell_steps = [[0] * (depth + 1) for _ in range(SIZES)]
        self._shrunk = [[0.0] * (depth + 1) for _ in range(SIZES)]
        """The cells, shrunk to the mean of their batch size while they are not known well."""
        self._shape = (0, 0, False, 0, GraphMode.FULL)
        self._waiting: list[tuple[int, float]] = []
        """(Verified tokens, seconds) of steps of ``_shape`` that are not learnt yet."""

    @property
    def prompt_token_s(self) -> float:
        """Additional seconds of a step for each prompt token; 0 until observed."""
        return (self._unit or 0.0) * math.exp(self._speed) * self._terms.prompt_token

    @property
    def is_known(self) -> bool:
        return self._unit is not None

    def observe(self, step: ObservedStep) -> tuple[float, float]:
        """Learn from the time of one step.

        Consecutive steps of the same kind are learnt together, once their time is known well.
        Returns the expected and the actual seconds of the steps that are learnt now.
        """
        batch, num_verified, depth, seconds, prompt, mode = step
        if seconds <= 0 or batch <= 0:
            return 0.0, 0.0
        expected_s = actual_s = 0.0
        shape = batch, depth, num_verified > 0, prompt, mode
        if self._waiting and shape != self._shape:
            expected_s, actual_s = self._learn()
        self._shape = shape
        self._waiting.append((num_verified, seconds))
        count = self._cell_steps[_size_class(batch)][self._find_cell(batch, num_verified, depth)]
        if len(self._waiting) < TOGETHER and count >= TIMED:
            return expected_s, actual_s
        sums = self._learn()
        return expected_s + sums[0], actual_s + sums[1]

    @property
    def _terms(self) -> StepTerms:
        return StepTerms(*self._weights)

    def _learn(self) -> tuple[float, float]:
        """Learn from the waiting steps. Returns their seconds as expected before, and as taken.

        The time of a step is the product of its linear part, the machine's speed and a correction.
        The filter explains what it can of the innovation by the first two, and the rest, the
        residual, teaches the correction.
        """
        batch, depth, verifies, prompt, mode = self._shape
        widths, times = zip(*self._waiting, strict=True)
        self._waiting.clear()
        count = len(times)
        width = sum(widths) / count
        features = self._describe_step(batch, width, depth, prompt, mode)
        if self._unit is None:
            # Weights are relative to this unit. The first step of any shape sets it, so that their
            # guesses need not know the machine.
            self._unit = times[0] / _dot(features, self._guess)
        size, cell = _size_class(batch), self._find_cell(batch, width, depth)
        linear = max(_dot(features, self._weights), 1e-6)
        log_factor = self._speed
        if not prompt:
            log_factor += self._sizes[size] + self._cells[size][cell]
        expected_s = self._unit * linear * math.exp(log_factor)
        # Innovation: observed minus expected, as logarithms, because the noise of step times is
        # relative. Clipping is Huber's M-estimate (Ann. Math. Stat. 35, 1964): a step that took
        # 100 times as long (a page fault, a compilation) moves the state like one of 1.2 times.
        innovations = [math.log(seconds / expected_s) for seconds in times]
        innovation = sum(_clip(value, HUBER) for value in innovations) / count
        # A single step is usually one of the first of its kind, and its cell may really differ by
        # more than HUBER. So its residual is clipped only after the filter has taken its part.
        residual = innovation if count > 1 else innovations[0]
        # d log(linear) / d weight = feature / linear: the extended filter's linearisation.
        gradient = [feature / linear for feature in features]
        residual -= self._filter(gradient, innovation, count)
        # A step that only drafts, or only verifies, occurs when the depth changes. The first has no
        # cell of its own, and the second must not count for its batch size (``_correct``).
        if not prompt and (not verifies if self._lookup else verifies or not depth):
            is_shared = depth > 0 or not verifies
            self._correct(size, cell, _clip(residual, HUBER), count, is_shared)
        self.steps += count
        return expected_s * count, sum(times)

    def seconds(self, batch: int, widths: Floats) -> Floats:
        """Return the expected seconds at every depth 0 .. K, with ``widths`` draft tokens at each
        depth, the same number for each request.

        This is the cost in the long run, in which a step that drafts also verifies.
        """
        base, per_token = self._line(batch)
        if self.graphs is None:
            return np.asarray(base + per_token * widths)
        modes = [self.graphs.find_mode([depth] * batch) for depth in range(self.depth + 1)]
        padded_widths = [self.graphs.pad(batch + tokens) - batch for tokens in widths.tolist()]
        extra = [self.get_extra_s(batch, mode) for mode in modes]
        return np.asarray(base + per_token * padded_widths + extra)

    def get_extra_s(self, batch: int, mode: GraphMode) -> float:
        """Return the expected seconds that a step takes longer than with a FULL graph."""
        if mode is GraphMode.FULL or self.graphs is None:
            return 0.0
        terms = self._terms
        weight = terms.piecewise if mode is GraphMode.PIECEWISE else terms.no_graph
        return weight * self._factor(_size_class(batch))

    def estimate(self, batch: int, num_verified: float, depth: int, mode: GraphMode) -> float:
        """Return the expected seconds of a step at this depth that verifies ``num_verified`` padded
        tokens."""
        base, per_token = self._line(batch)
        return float(base[depth] + per_token[depth] * num_verified + self.get_extra_s(batch, mode))

    def line(self, batch: int) -> tuple[Floats, Floats]:
        """Return the expected seconds without verified tokens, and per verified token, at every
        depth.

        Each request verifies the tokens that pay, so several requests have no FULL graph.
        """
        base, per_token = self._line(batch)
        if self.graphs is None or batch == 1:
            return base, per_token
        return base + self.get_extra_s(batch, GraphMode.PIECEWISE), per_token

    def _line(self, batch: int) -> tuple[Floats, Floats]:
        """Return the same as ``line``, with FULL graphs."""
        w = self._terms
        size = _size_class(batch)
        # In the long run every step that drafts also verifies, so it pays both fixed parts.
        fixed_part, overhead = w.fixed + w.request * batch, w.drafting + w.verifying
        per_depth = w.depth + w.depth_and_request * batch
        factor = self._factor(size)
        factors = [factor * math.exp(self._shrunk[size][k]) for k in self._corrected]
        base = [
            (fixed_part + overhead * (k > 0) + per_depth * k) * factor
            for k, factor in zip(self._drafted, factors, strict=True)
        ]
        return np.array(base), w.verified_token * np.array(factors)  # each in shape (K + 1,)

    def step_seconds(self, batch: int, num_verified: int, depth: int) -> float:
        """Return the expected seconds of one step, whatever the steps before and after it do."""
        size, cell = _size_class(batch), self._find_cell(batch, num_verified, depth)
        factor = self._factor(size) * math.exp(self._shrunk[size][cell])
        return _dot(self._describe_step(batch, num_verified, depth), self._weights) * factor

    def per_token(self, batch: int) -> float:
        """Return the expected seconds of one more verified draft token."""
        return self._terms.verified_token * self._factor(_size_class(batch))

    def steps_at(self, batch: int) -> Floats:
        """Return the numbers of observed steps at every depth with about this many requests."""
        steps = self._cell_steps[_size_class(batch)]
        return np.array([steps[k] for k in self._corrected], dtype=np.float64)

    def describe(self) -> dict[str, object]:
        unit = (self._unit or 0.0) * math.exp(self._speed)
        return {
            "steps": self.steps,
            "milliseconds": {
                name: round(weight * unit * 1e3, 4)
                for name, weight in zip(StepTerms._fields, self._weights, strict=False)
            }
            if self.is_known
            else None,
            "table": self.tabulate(),
        }

    def tabulate(self) -> dict[str, object] | None:
        """Return the milliseconds of a step in which every request drafts and verifies the same
        number of tokens, by batch size and depth, with the number of observed steps; None until a
        step is known.

        Batch sizes are powers of two, up to the largest size seen. `eaglegate drafts compare
        --cost-table` reads the table.
        """
        classes = [size for size, steps in enumerate(self._size_steps) if steps]
        if not classes:
            return None
        batches = [1 << size for size in range(max(classes))]
        drafted = np.array(self._drafted, dtype=np.float64)
        return {
            "batches": batches,
            "depths": list(range(self.depth + 1)),
            "step_ms": [
                (1e3 * self.seconds(batch, batch * drafted)).round(4).tolist() for batch in batches
            ],
            "steps": [self._cell_steps[_size_class(batch)] for batch in batches],
        }

    def export(self) -> dict[str, object]:
        """Export the learnt state, as numbers and lists of numbers, for ``restore``."""
        return deepcopy(self._read_learnt())

    def restore(self, state: Mapping[str, object]) -> bool:
        """Restore the state that another model exported.

        Returns False and changes nothing if it does not fit: it has another depth, or values that
        are not numbers.
        """
        if not _fits(state, self._read_learnt()):
            return False
        for name in LEARNT:
            setattr(self, name, deepcopy(state[name]))
        return True

    def _read_learnt(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in LEARNT}

    def _filter(self, gradient: Row, innovation: float, count: int) -> float:
        """Update weights and speed by the mean innovation of ``count`` steps. Returns the change of
        their own expected time, as a logarithm.

        ``gradient`` is the derivative of the logarithm of the time by the weights. This is one step
        of an extended Kalman filter (Kalman 1960; Jazwinski, Stochastic Processes and Filtering
        Theory, 1970, ch. 8) with a scalar observation. It is plain Python, because with so few
        numbers and cold caches numpy takes up to 50 % longer.
        """
        observation = [
            *gradient,
            1.0,
        ]  # H, in shape (n + 1,); log(time) contains the log speed once
        # Predict, P += Q: state is a random walk. Without the drift the gain would fall to zero,
        # and a change of the machine would never be learnt. A weight at zero drifts by its guess.
        drifts = (WEIGHT_DRIFT * max(pair) for pair in zip(self._weights, self._guess, strict=True))
        for i, drift in enumerate((*drifts, SPEED_DRIFT)):
            self._covariance[i][i] += count * drift**2
        # Innovation variance, S = H P H' + R. The mean of ``count`` steps has R / count.
        cross_covariance = [_dot(row, observation) for row in self._covariance]  # P H'
        variance = _dot(observation, cross_covariance) + NOISE**2 / count
        # Update, P -= K H P with the Kalman gain K = P H' / S. P is symmetric, so H P = (P H')'.
        for row, covariance in zip(self._covariance, cross_covariance, strict=True):
            gain = covariance / variance
            row[:] = [p - gain * hp for p, hp in zip(row, cross_covariance, strict=True)]
        # State += K x innovation. The product comes first, to round as in earlier versions.
        *changes, speed_change = [
            covariance * innovation / variance for covariance in cross_covariance
        ]
        previous_weights = self._weights
        # No part of a step takes negative time. Without the bound, noise could make a deeper draft
        # look cheaper than a shallow one, and verified tokens free.
        self._weights = [
            max(w + change, 0.0) for w, change in zip(previous_weights, changes, strict=True)
        ]
        self._speed += speed_change
        # The change that was made, not the one that was computed: the bound may have cut it.
        linear_change = _dot(gradient, self._weights) - _dot(gradient, previous_weights)
        return math.log(max(1.0 + linear_change, 1e-6)) + speed_change

    def _describe_step(
        self,
        batch: int,
        num_verified: float,
        depth: int,
        prompt: int = 0,
        mode: GraphMode = GraphMode.FULL,
    ) -> Row:
        """Describe a step as the features of the weights. A prompt's weight includes the missing
        FULL graph."""
        if self.graphs is None:
            return [*_find_features(batch, num_verified, depth, prompt)[:-NUM_GRAPH_TERMS]]
        padded_width = num_verified if prompt else self.graphs.pad(batch + num_verified) - batch
        graph_mode = GraphMode.FULL if prompt else mode
        return [*_find_features(batch, padded_width, depth, prompt, graph_mode)]

    def _factor(self, size: int) -> float:
        """Return the seconds of the model's unit with about this many requests, at the machine's
        speed."""
        return math.exp(self._speed + self._sizes[size]) * (self._unit or 1.0)

    def _find_cell(self, batch: int, num_verified: float, depth: int) -> int:
        """Return the depth whose correction a step has. A step that only verifies has that of its
        drafts."""
        if self._lookup:
            return 0
        if depth or not num_verified:
            return depth
        return min(self.depth, max(1, round(num_verified / batch)))

    def _correct(self, size: int, cell: int, residual: float, count: int, is_shared: bool) -> None:
        """Distribute the residual of ``count`` steps to the batch size and the cell.

        A step that only verifies is not shared with the batch size (``is_shared``), because it must
        not make steps without drafts look slow. A step that only drafts teaches neither.
        """
        # Both corrections add up in the expected time. If their gains exceeded 1 together, as in
        # the first steps, they would overshoot the residual.
        steps, cells = self._cell_steps[size], self._cells[size]
        gains = (
            _compute_gain(self._size_steps[size], count) * is_shared,
            _compute_gain(steps[cell], count),
        )
        residual /= max(1.0, sum(gains))
        self._sizes[size] += residual * gains[0]
        cells[cell] = _clip(cells[cell] + residual * gains[1], WIDEST)
        self._size_steps[size] += is_shared * count
        steps[cell] += count
        # Shrinkage: the mean of the batch size's cells counts as TIMED steps of each cell. An
        # untimed depth so has the correction of its neighbours, and is not chosen by default.
        mean = TIMED * _dot(steps, cells) / sum(steps)
        self._shrunk[size] = [
            (num_steps * value + mean) / (num_steps + TIMED)
            for num_steps, value in zip(steps, cells, strict=True)
        ]


def _fits(value: object, template: object) -> bool:
    """Return True if both have the same keys, lengths and nesting, and all values are finite
    numbers."""
    if isinstance(template, Mapping):
        if not isinstance(value, Mapping) or value.keys() != template.keys():
            return False
        return all(_fits(value[key], template[key]) for key in template)
    if isinstance(template, list):
        if not isinstance(value, list) or len(value) != len(template):
            return False
        return all(map(_fits, value, template))
    return isinstance(value, int | float) and math.isfinite(value)


def _dot(row: Iterable[float], column: Iterable[float]) -> float:
    product: float = sum(map(mul, row, column))
    return product


def _clip(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)


def _compute_gain(steps: float, count: int) -> float:
    """Return the gain of a mean over the first steps, and later of an average of the newest
    ones."""
    return max(CELL_GAIN * count, count / (steps + count))


def _find_features(
    batch: int, num_verified: float, depth: int, prompt: int = 0, mode: GraphMode = GraphMode.FULL
) -> StepTerms:
    return StepTerms(
        fixed=1.0,
        request=batch,
        verified_token=num_verified,
        drafting=depth > 0,
        depth=depth,
        depth_and_request=depth * batch,
        verifying=num_verified > 0,
        prompt=prompt > 0,
        prompt_token=prompt,
        piecewise=mode is GraphMode.PIECEWISE,
        no_graph=mode is GraphMode.NONE,
    )


def _size_class(batch: int) -> int:
    return min(batch.bit_length(), SIZES - 1)
