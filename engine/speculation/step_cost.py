"""How long a step takes: learnt from step times, linear in what a step does.

seconds = w0 + w1 B + w2 V + w3 [K > 0] + w4 K + w5 K B + w6 [V > 0], for B requests, V draft tokens
verified and K draft tokens made for each request after verifying. Making drafts and verifying them
fall into different steps where the depth changes, so each has a fixed part of its own. Weighted
least squares with forgetting, drawn towards a first guess, weights kept at 0 or more; a small
correction per batch size and depth takes up what is not linear.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

GUESS = np.array([1.0, 0.01, 0.01, 0.01, 0.06, 0.002, 0.01])
"""First guess of the weights, in units of a step of one request without a draft."""
NOISE = 0.1
"""Typical relative error of a step time."""
PRIOR = NOISE**2 / (2 * GUESS) ** 2
"""Precision of the guess: each weight is taken to be within twice itself."""
MEMORY = 0.998
"""What one step leaves of the weight of older steps."""
OUTLIER = 3.0
"""Step times further from the prediction than this, as a ratio, count as that ratio."""
HUBER = 0.2
"""Residuals beyond this, as logarithms, count as outliers and weigh less."""
SOLVE_EVERY = 8
CELL_WEIGHT = 1.0
CELL_MEMORY = 0.97
WIDEST = 0.4
"""The largest correction of a cell, as a logarithm."""


class StepCostModel:
    """Seconds of a decode step. Not for steps that hold a prompt: those must not be observed."""

    def __init__(self, depth: int, base_s: float | None = None) -> None:
        """``base_s``: seconds of a step of one request without a draft; None until observed."""
        self.depth = depth
        self.steps = 0
        self._unit = base_s
        self._weights = GUESS.copy()
        self._gram = np.zeros((len(GUESS), len(GUESS)))
        self._moment = np.zeros(len(GUESS))
        self._sizes = np.zeros(12)
        self._size_steps = np.zeros(12)
        self._cells = np.zeros((12, depth + 1))
        self._cell_steps = np.zeros((12, depth + 1))
        self._depths = np.arange(depth + 1, dtype=np.float64)

    @property
    def is_known(self) -> bool:
        return self._unit is not None

    def observe(self, batch: int, verified: int, depth: int, seconds: float) -> None:
        """One step of ``batch`` requests in steady decoding."""
        if seconds <= 0 or batch <= 0:
            return
        row = _features(batch, verified, depth)
        if self._unit is None:
            self._unit = seconds / float(row @ GUESS)
        expected = float(row @ self._weights)
        taken = seconds / self._unit
        if self.steps >= SOLVE_EVERY:
            taken = min(max(taken, expected / OUTLIER), expected * OUTLIER)
        residual = float(np.log(taken / max(expected, 1e-6)))
        weight = min(1.0, HUBER / max(abs(residual), 1e-6)) / max(expected, 1e-6) ** 2
        self._gram = self._gram * MEMORY + weight * np.outer(row, row)
        self._moment = self._moment * MEMORY + weight * taken * row
        self.steps += 1
        if self.steps % SOLVE_EVERY == 0 or self.steps < SOLVE_EVERY:
            self._solve()
        self._correct(batch, verified, depth, residual)

    def seconds(self, batch: int, verified: Floats) -> Floats:
        """Expected seconds at every depth 0 .. K; ``verified`` draft tokens at each of them.

        As a step costs in the long run: one that drafts verifies, too.
        """
        base, per_token = self.line(batch)
        return np.asarray(base + per_token * verified)

    def line(self, batch: int) -> tuple[Floats, Floats]:
        """Expected seconds with nothing verified, and per verified token, at every depth."""
        w, k = self._weights, self._depths
        linear = w[0] + w[1] * batch + (w[3] + w[6]) * (k > 0) + (w[4] + w[5] * batch) * k
        size = _size_class(batch)
        factor = np.exp(self._sizes[size] + self._cells[size]) * (self._unit or 1.0)
        return linear * factor, w[2] * factor

    def step_seconds(self, batch: int, verified: int, depth: int) -> float:
        """Expected seconds of one step, whatever the steps beside it do."""
        size = _size_class(batch)
        factor = np.exp(self._sizes[size] + self._cells[size, depth]) * (self._unit or 1.0)
        return float(_features(batch, verified, depth) @ self._weights * factor)

    def per_token(self) -> float:
        """Expected seconds that one more verified draft token costs."""
        return float(self._weights[2]) * (self._unit or 1.0)

    def steps_at(self, batch: int) -> Floats:
        """Steps observed at every depth with about this many requests."""
        return np.asarray(self._cell_steps[_size_class(batch)])

    def describe(self) -> dict[str, object]:
        names = (
            "fixed",
            "request",
            "verified_token",
            "drafting",
            "depth",
            "depth_and_request",
            "verifying",
        )
        unit = self._unit or 0.0
        return {
            "steps": self.steps,
            "milliseconds": {
                name: round(float(weight) * unit * 1e3, 4)
                for name, weight in zip(names, self._weights, strict=True)
            },
        }

    def _solve(self) -> None:
        """Least squares with the guess as prior; negative weights are set to 0 one by one."""
        left = self._gram + np.diag(PRIOR)
        right = self._moment + PRIOR * GUESS
        used = list(range(len(GUESS)))
        found = GUESS
        while used:
            found = np.linalg.solve(left[np.ix_(used, used)], right[used])
            if (found >= 0).all():
                break
            used.pop(int(found.argmin()))
        self._weights = np.zeros(len(GUESS))
        self._weights[used] = found

    def _correct(self, batch: int, verified: int, depth: int, residual: float) -> None:
        """A batch size's own correction first; what is left of it is the depth's.

        A step that only verifies is charged to the depth whose drafts it verifies, and to no batch
        size: it must not make steps without drafts look slow. One that only drafts tells neither.
        """
        size = _size_class(batch)
        if depth and not verified:
            return
        if verified and not depth:
            depth = min(self.depth, max(1, round(verified / batch)))
        else:
            self._sizes[size] = _approach(self._sizes[size], residual, self._size_steps[size])
            self._size_steps[size] += 1
        rest = residual - self._sizes[size]
        steps = self._cell_steps[size, depth]
        self._cells[size, depth] = _approach(self._cells[size, depth], rest, steps)
        self._cell_steps[size, depth] += 1


def _approach(average: float, value: float, steps: float) -> float:
    """A robust moving average of about ``1 / (1 - CELL_MEMORY)`` steps, kept within ``WIDEST``."""
    rate = max(1 - CELL_MEMORY, 1 / (steps + CELL_WEIGHT))
    move = min(max(value - average, -HUBER), HUBER)
    return float(min(max(average + rate * move, -WIDEST), WIDEST))


def _features(batch: int, verified: int, depth: int) -> Floats:
    return np.array(
        [1.0, batch, verified, depth > 0, depth, depth * batch, verified > 0], dtype=np.float64
    )


def _size_class(batch: int) -> int:
    return min(batch.bit_length(), 11)
