"""Probes of the depth planner: steps at other depths than the best.

A verify step teaches every position up to its width. Deeper positions, and the time of rarely used
depths, need probes: steps that are one deeper than the best, or shallower. A budget pays their
expected loss, which is a share of the elapsed time. After each probe that changed nothing, the wait
for the next one doubles. New requests are probed without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.step_cost import TIMED

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

PROBE_SHARE = 0.005
"""Share of the time that probes may take."""
SAVED_STEPS = 0.5
"""Most that the budget saves, in steps."""
COLD_TRIALS = 2.0
"""Trials of its own below which a request counts as unknown."""
COLD_STEPS = 8
"""Number of first verify steps in which a request may count as unknown."""
LONGEST_WAIT = 256
"""Most steps between probes."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best plan for a step, with the expected results of other plans."""

    depth: int
    widths: Ints
    bounds: Ints
    min_depth: int
    """The greatest depth that a request has asked for."""
    survival: Floats
    """Survival in shape (requests, K)."""
    rate: float
    """Committed tokens per second."""
    seconds: Floats
    """Seconds of a step at every depth 0 .. K with the best widths."""
    token_s: float
    """Seconds to verify one more draft token."""
    free_depth: int
    """The best depth if no request had asked for one."""

    def is_pinned(self, floors: Sequence[int]) -> bool:
        """Return True if requests with their own depth decide the depth, not its cost."""
        is_bounded = self.min_depth > 0 and bool((self.bounds <= floors).all())
        return self.depth == self.min_depth and (is_bounded or self.free_depth < self.min_depth)

    @property
    def deepest(self) -> Any:
        """Mask of the requests that verify as deep as the best depth, and could verify deeper."""
        return (self.bounds > self.depth) & (self.widths >= self.depth)

    def get_tokens_s(self, tokens: float) -> float:
        """Return the time that ``tokens`` are worth."""
        return tokens / max(self.rate, 1e-9)


@dataclass(frozen=True, slots=True)
class Probe:
    """A step at another depth than the best. ``is_cold`` means that it tests unknown requests."""

    depth: int
    widths: Ints
    is_cold: bool = False


class Probes:
    """Choice of probes for one planner."""

    def __init__(self) -> None:
        self._budget_s = 0.0
        self._price_s = 0.0
        """Price of the cheapest probe that the budget did not pay; infinite if there is none."""
        self._wait = 1
        self._waited = 0

    @property
    def is_due(self) -> bool:
        """True if a probe may be chosen at the next step."""
        return self._waited + 1 >= self._wait and self._budget_s >= self._price_s

    def save(self, seconds: float) -> None:
        """Add the share of a step's time to the budget."""
        self._budget_s += PROBE_SHARE * seconds
        self._budget_s = min(self._budget_s, SAVED_STEPS * seconds)

    def count_step(self) -> None:
        self._waited += 1

    def restart(self) -> None:
        """Probe again without a wait, because the best depth has changed."""
        self._wait = 1

    def choose(self, optimum: Optimum, steps_at: Floats, trials: Floats, age: Ints) -> Probe | None:
        """Return a probe that teaches something and that the budget can pay; None if there is none.

        ``steps_at`` counts the observed steps at every depth, ``trials`` those of every request and
        position, and ``age`` the verify steps of every request.
        """
        self._price_s = math.inf
        untimed_mask = steps_at[optimum.min_depth : optimum.depth] < TIMED
        if untimed_mask.any() and (
            probe := self._choose_shallower(optimum, int(untimed_mask.argmax()))
        ):
            return probe
        deepest_mask = optimum.deepest
        if optimum.depth == optimum.survival.shape[1] or not deepest_mask.any():
            return None
        cold_mask = deepest_mask & (trials[:, optimum.depth] < COLD_TRIALS) & (age < COLD_STEPS)
        if cold_mask.any():
            return self._choose_deeper(optimum, cold_mask, is_cold=True)
        if self._waited < self._wait:
            self._price_s = 0.0
            return None
        probe = self._choose_deeper(optimum, deepest_mask, is_cold=False)
        if probe is not None:
            self._waited = 0
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        return probe

    def _choose_shallower(self, optimum: Optimum, index: int) -> Probe | None:
        """Choose the depth ``index`` above the least, only to measure its time."""
        if self._waited <= 2:
            self._price_s = 0.0
            return None
        depth = optimum.min_depth + index
        positions = np.arange(1, optimum.depth + 1)
        survival = optimum.survival[:, : optimum.depth] * (positions <= optimum.widths[:, None])
        lost_s = optimum.get_tokens_s(float(survival[:, depth:].sum()))
        if not self._pay(lost_s - float(optimum.seconds[optimum.depth] - optimum.seconds[depth])):
            return None
        self._waited = 0
        return Probe(depth, np.minimum(optimum.widths, depth))

    def _choose_deeper(self, optimum: Optimum, mask: Any, is_cold: bool) -> Probe | None:
        """Choose the depth one above the best, for the requests in ``mask``."""
        depth = optimum.depth
        cost_s = float(optimum.seconds[depth + 1] - optimum.seconds[depth])
        cost_s += int(mask.sum()) * optimum.token_s
        gain_s = optimum.get_tokens_s(float(optimum.survival[mask, depth].sum()))
        if not self._pay(cost_s - gain_s):
            return None
        return Probe(depth + 1, np.where(mask, depth + 1, optimum.widths), is_cold)

    def _pay(self, seconds: float) -> bool:
        """Deduct a probe's expected loss from the budget; return False if the budget is too
        small."""
        if seconds > self._budget_s:
            self._price_s = min(self._price_s, seconds)
            return False
        self._budget_s -= max(0.0, seconds)
        return True
