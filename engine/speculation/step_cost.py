"""Time of a step, learnt from step times: linear in the step's work and its graph mode.

seconds = speed x (w0 + w1 B + w2 V + w3 [K > 0] + w4 K + w5 K B + w6 [V > 0] + w7 [P > 0] + w8 P),
for B requests, V draft tokens verified and K draft tokens made for each request after verifying,
and P tokens of prompts that are read in the same step. Making drafts and verifying them fall into
different steps where the depth changes, so each has a fixed part. With CUDA graphs
(step_graphs.py) B + V is what the step is padded to, and two more weights are the extra time of a
step with PIECEWISE graphs, and of one with none.

Weights and speed are the state of an extended Kalman filter (Kalman, J. Basic Engineering 82, 1960)
on the logarithm of a step's time. The speed may move fast, the weights slowly: a machine that turns
slow does not make the depth in use look worse than the others. Small corrections per batch size and
depth take up what is not linear; for the same reason a depth that was hardly seen with that size
has the correction of those that were.
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

GUESS = (1.0, 0.01, 0.01, 0.01, 0.06, 0.002, 0.01, 0.1, 0.01)
"""First guess of the weights, in units of a step of one request without a draft."""
GRAPH_GUESS = (0.05, 0.2)
"""The same of steps without a FULL graph: vLLM's authors measured 1 % (8B, dense) to 47 % (30B with
3B active) more time for PIECEWISE (pull requests 16072, 21477 and 25444)."""
NOISE = 0.1
"""Typical relative error of a step time."""
WEIGHT_DRIFT = 0.002
"""Drift of a weight in a step, relative to the larger of the weight and its guess..."""
SPEED_DRIFT = 0.03
"""... and the speed, as a logarithm."""
HUBER = 0.2
"""Residuals beyond this, as logarithms, count as outliers and move as much as this would."""
TIMED = 8
"""Steps after which the time at a depth counts as known, and half its correction as its own."""
TOGETHER = 4
"""Number of like steps in a row that are learnt from at once."""
CELL_GAIN = 0.02
"""Share of what is left that a batch size and a depth take up at least; more while they are new."""
WIDEST = 0.4
"""The largest correction of a cell, as a logarithm."""
SIZES = 12
"""Classes of batch sizes, by powers of two."""
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
"""Fields that another model goes on from."""


class ObservedStep(NamedTuple):
    """One step of a scheduler: what it held, and the seconds it took."""

    batch: int
    """Requests that decode."""
    verified: int
    """Draft tokens verified, of all of them."""
    depth: int
    """Draft tokens made for each request."""
    seconds: float
    prompt: int = 0
    """Prompt tokens of other requests, read in the same step."""
    mode: GraphMode = GraphMode.FULL


class StepCostModel:
    """Seconds of a decode step.

    Steps that hold a piece of a prompt teach the weights, and no correction of a cell: where
    prompts arrive all the time there are few others.
    """

    def __init__(
        self,
        depth: int,
        always_full: bool = False,
        base_s: float | None = None,
        lookup: bool = False,
        graphs: StepGraphs | None = None,
    ) -> None:
        """``base_s``: seconds of a step of one request without a draft; None until observed.

        ``always_full``: a step with any draft drafts ``depth`` tokens (``methods.StepDepth.FULL``).
        ``lookup``: how many tokens a step verifies does not follow from its depth, so that steps
        that verify any teach the weights alone, and every depth has the correction of depth 0.
        ``graphs``: None where steps run without them, as on CPUs.
        """
        self.depth = depth
        self._lookup = lookup
        self.graphs = graphs
        self._guess: tuple[float, ...] = GUESS if graphs is None else (*GUESS, *GRAPH_GUESS)
        self._drafted = [depth if always_full and at else at for at in range(depth + 1)]
        """Draft tokens made at every depth that is planned..."""
        self._corrected = [0] * (depth + 1) if lookup else self._drafted
        """... and the depth whose correction it has."""
        self.steps = 0
        self._unit = base_s
        self._weights: Row = [*self._guess]
        self._speed = 0.0
        deviations = *(2 * guess for guess in self._guess), 0.0
        self._covariance = [
            [deviation**2 if i == j else 0.0 for j in range(len(deviations))]
            for i, deviation in enumerate(deviations)
        ]
        """Covariance of the weights and the speed."""
        self._sizes = [0.0] * SIZES
        self._size_steps = [0] * SIZES
        self._cells = [[0.0] * (depth + 1) for _ in range(SIZES)]
        self._cell_steps = [[0] * (depth + 1) for _ in range(SIZES)]
        self._shrunk = [[0.0] * (depth + 1) for _ in range(SIZES)]
        """The cells, as far as they are not known drawn to the mean of their batch size."""
        self._shape = (0, 0, False, 0, GraphMode.FULL)
        self._waiting: list[tuple[int, float]] = []
        """Tokens verified and seconds of steps of ``_shape`` that are not learnt from yet."""

    @property
    def prompt_token_s(self) -> float:
        """Seconds that a step takes longer for each token of a prompt; 0 until observed."""
        return (self._unit or 0.0) * math.exp(self._speed) * self._weights[8]

    @property
    def is_known(self) -> bool:
        return self._unit is not None

    def observe(self, step: ObservedStep) -> tuple[float, float]:
        """Learn from the time of one step.

        Like steps in a row are learnt from together, once their time is known well. Returns the
        seconds that were expected of what is learnt from now, and those it took.
        """
        batch, verified, depth, seconds, prompt, mode = step
        if seconds <= 0 or batch <= 0:
            return 0.0, 0.0
        expected = taken = 0.0
        shape = batch, depth, verified > 0, prompt, mode
        if self._waiting and shape != self._shape:
            expected, taken = self._learn()
        self._shape = shape
        self._waiting.append((verified, seconds))
        seen = self._cell_steps[_size_class(batch)][self._find_cell(batch, verified, depth)]
        if len(self._waiting) < TOGETHER and seen >= TIMED:
            return expected, taken
        more = self._learn()
        return expected + more[0], taken + more[1]

    def _learn(self) -> tuple[float, float]:
        """Learn from the steps that wait. Seconds expected of them before, and taken."""
        batch, depth, verifies, prompt, mode = self._shape
        verified, taken = zip(*self._waiting, strict=True)
        self._waiting.clear()
        count = len(taken)
        width = sum(verified) / count
        row = self._describe_step(batch, width, depth, prompt, mode)
        if self._unit is None:
            self._unit = taken[0] / _dot(row, self._guess)
        size, cell = _size_class(batch), self._find_cell(batch, width, depth)
        linear = max(_dot(row, self._weights), 1e-6)
        factors = self._speed
        if not prompt:
            factors += self._sizes[size] + self._cells[size][cell]
        expected = self._unit * linear * math.exp(factors)
        errors = [math.log(seconds / expected) for seconds in taken]
        error = sum(_clip(one, HUBER) for one in errors) / count
        left = error if count > 1 else errors[0]
        left -= self._filter([one / linear for one in row], error, count)
        if not prompt and (not verifies if self._lookup else verifies or not depth):
            shared = depth > 0 or not verifies
            self._correct(size, cell, _clip(left, HUBER), count, shared)
        self.steps += count
        return expected * count, sum(taken)

    def seconds(self, batch: int, verified: Floats) -> Floats:
        """Expected seconds at every depth 0 .. K; ``verified`` draft tokens at each of them, as
        many of each request.

        As a step costs in the long run: one that drafts verifies, too.
        """
        base, per_token = self._line(batch)
        if self.graphs is None:
            return np.asarray(base + per_token * verified)
        modes = [self.graphs.find_mode([depth] * batch) for depth in range(self.depth + 1)]
        padded = [self.graphs.pad(batch + tokens) - batch for tokens in verified.tolist()]
        extra = [self.get_extra_s(batch, mode) for mode in modes]
        return np.asarray(base + per_token * padded + extra)

    def get_extra_s(self, batch: int, mode: GraphMode) -> float:
        """Expected seconds that a step takes more than with a FULL graph."""
        if mode is GraphMode.FULL or self.graphs is None:
            return 0.0
        weight: float = self._weights[len(GUESS) + mode - GraphMode.PIECEWISE]
        return weight * self._factor(_size_class(batch))

    def estimate(self, batch: int, verified: float, depth: int, mode: GraphMode) -> float:
        """Expected seconds of a step that drafts so deep and verifies so many padded tokens."""
        base, per_token = self._line(batch)
        return float(base[depth] + per_token[depth] * verified + self.get_extra_s(batch, mode))

    def line(self, batch: int) -> tuple[Floats, Floats]:
        """Expected seconds with nothing verified, and per verified token, at every depth, where
        each request verifies as many tokens as pay: several requests then have no FULL graph.
        """
        base, per_token = self._line(batch)
        if self.graphs is None or batch == 1:
            return base, per_token
        return base + self.get_extra_s(batch, GraphMode.PIECEWISE), per_token

    def _line(self, batch: int) -> tuple[Floats, Floats]:
        """The same with FULL graphs."""
        w = self._weights
        size = _size_class(batch)
        factor = self._factor(size)
        fixed, drafting = w[0] + w[1] * batch, w[3] + w[6]
        per_depth = w[4] + w[5] * batch
        factors = [factor * math.exp(self._shrunk[size][k]) for k in self._corrected]
        base = [
            (fixed + drafting * (k > 0) + per_depth * k) * factor
            for k, factor in zip(self._drafted, factors, strict=True)
        ]
        return np.array(base), w[2] * np.array(factors)

    def step_seconds(self, batch: int, verified: int, depth: int) -> float:
        """Expected seconds of one step, whatever the steps beside it do."""
        size, cell = _size_class(batch), self._find_cell(batch, verified, depth)
        factor = self._factor(size) * math.exp(self._shrunk[size][cell])
        return _dot(self._describe_step(batch, verified, depth), self._weights) * factor

    def per_token(self, batch: int) -> float:
        """Expected seconds that one more verified draft token costs."""
        return self._weights[2] * self._factor(_size_class(batch))

    def steps_at(self, batch: int) -> Floats:
        """Steps observed at every depth with about this many requests."""
        steps = self._cell_steps[_size_class(batch)]
        return np.array([steps[k] for k in self._corrected], dtype=np.float64)

    def describe(self) -> dict[str, object]:
        names = (
            "fixed",
            "request",
            "verified_token",
            "drafting",
            "depth",
            "depth_and_request",
            "verifying",
            "prompt",
            "prompt_token",
            "piecewise",
            "no_graph",
        )
        unit = (self._unit or 0.0) * math.exp(self._speed)
        return {
            "steps": self.steps,
            "milliseconds": {
                name: round(weight * unit * 1e3, 4)
                for name, weight in zip(names, self._weights, strict=False)
            },
            "table": self.tabulate(),
        }

    def tabulate(self) -> dict[str, object] | None:
        """Milliseconds of a step in which every request drafts and verifies as many tokens, by
        batch size and depth, and how many steps each is known from; None until a step is known.

        Batch sizes are powers of two, up to the largest size seen. `eaglegate drafts compare
        --cost-table` reads it.
        """
        seen = [size for size, steps in enumerate(self._size_steps) if steps]
        if not seen:
            return None
        batches = [1 << at for at in range(max(seen))]
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

    def restore(self, learnt: Mapping[str, object]) -> bool:
        """Go on from what another model exported. False, and nothing is changed, where that does
        not fit: it is of another depth, or holds what is not a number.
        """
        if not _fits(learnt, self._read_learnt()):
            return False
        for name in LEARNT:
            setattr(self, name, deepcopy(learnt[name]))
        return True

    def _read_learnt(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in LEARNT}

    def _filter(self, slope: Row, residual: float, count: int) -> float:
        """Move weights and speed by the mean residual of ``count`` steps. How far that moves their
        own time.

        ``slope``: of the logarithm of the time by the weights; by the speed it is 1. In plain
        Python: for so few numbers, with cold caches, numpy takes up to half as long again.
        """
        sensitivity = [*slope, 1.0]
        drifts = (WEIGHT_DRIFT * max(pair) for pair in zip(self._weights, self._guess, strict=True))
        for i, drift in enumerate((*drifts, SPEED_DRIFT)):
            self._covariance[i][i] += count * drift**2
        across = [_dot(row, sensitivity) for row in self._covariance]
        variance = _dot(sensitivity, across) + NOISE**2 / count
        for row, one in zip(self._covariance, across, strict=True):
            share = one / variance
            row[:] = [value - share * other for value, other in zip(row, across, strict=True)]
        *moves, faster = [one * residual / variance for one in across]
        before = self._weights
        self._weights = [max(w + move, 0.0) for w, move in zip(before, moves, strict=True)]
        self._speed += faster
        moved = _dot(slope, self._weights) - _dot(slope, before)
        return math.log(max(1.0 + moved, 1e-6)) + faster

    def _describe_step(
        self,
        batch: int,
        verified: float,
        depth: int,
        prompt: int = 0,
        mode: GraphMode = GraphMode.FULL,
    ) -> Row:
        """Describe a step as a row of factors for the weights. A prompt's weight includes that
        its step has no FULL graph.
        """
        if self.graphs is None:
            return _features(batch, verified, depth, prompt)
        padded = verified if prompt else self.graphs.pad(batch + verified) - batch
        row = _features(batch, padded, depth, prompt)
        modes = (GraphMode.PIECEWISE, GraphMode.NONE)
        return [*row, *(float(mode is one and not prompt) for one in modes)]

    def _factor(self, size: int) -> float:
        """Seconds of the model's unit with about this many requests, as the machine runs now."""
        return math.exp(self._speed + self._sizes[size]) * (self._unit or 1.0)

    def _find_cell(self, batch: int, verified: float, depth: int) -> int:
        """The depth whose correction a step has: one that only verifies has that of its drafts."""
        if self._lookup:
            return 0
        if depth or not verified:
            return depth
        return min(self.depth, max(1, round(verified / batch)))

    def _correct(self, size: int, cell: int, residual: float, count: int, shared: bool) -> None:
        """Share out what weights and speed leave of the time of ``count`` steps.

        A step that only verifies is not ``shared`` with the batch size: it must not make steps
        without drafts look slow. One that only drafts tells neither of them anything.
        """
        steps, cells = self._cell_steps[size], self._cells[size]
        gains = _gain(self._size_steps[size], count) * shared, _gain(steps[cell], count)
        residual /= max(1.0, sum(gains))
        self._sizes[size] += residual * gains[0]
        cells[cell] = _clip(cells[cell] + residual * gains[1], WIDEST)
        self._size_steps[size] += shared * count
        steps[cell] += count
        own = TIMED * _dot(steps, cells) / sum(steps)
        self._shrunk[size] = [
            (seen * value + own) / (seen + TIMED) for seen, value in zip(steps, cells, strict=True)
        ]


def _fits(value: object, like: object) -> bool:
    """Whether it has the same keys, lengths and nesting, and all in it are finite numbers."""
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            return False
        return all(_fits(value[key], like[key]) for key in like)
    if isinstance(like, list):
        if not isinstance(value, list) or len(value) != len(like):
            return False
        return all(map(_fits, value, like))
    return isinstance(value, int | float) and math.isfinite(value)


def _dot(left: Iterable[float], right: Iterable[float]) -> float:
    found: float = sum(map(mul, left, right))
    return found


def _clip(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)


def _gain(steps: float, count: int) -> float:
    """Gain of a mean over the first steps, and of an average of the newest ones later."""
    return max(CELL_GAIN * count, count / (steps + count))


def _features(batch: int, verified: float, depth: int, prompt: int = 0) -> Row:
    decoding = [1.0, batch, verified, depth > 0, depth, depth * batch, verified > 0]
    return [*decoding, prompt > 0, prompt]


def _size_class(batch: int) -> int:
    return min(batch.bit_length(), SIZES - 1)
