"""Probes of the depth planner: steps beside the best depth.

A verify step teaches every position up to its width. Deeper positions, and the time of a depth that
was hardly ever used, need probes: steps one deeper than the best, or shallower. Their expected loss
is paid from a budget, a share of the time that went by, and they wait twice as long after each one
that changed nothing. Requests of which nothing is known yet are tried without waiting.
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
"""The most that the budget saves up, in steps."""
COLD_TRIALS = 2.0
"""A request with fewer trials of its own counts as unknown..."""
COLD_STEPS = 8
"""... in its first verify steps."""
LONGEST_WAIT = 256
"""Steps between probes at most."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best plan for a step, and what a step beside it would bring."""

    depth: int
    widths: Ints
    bounds: Ints
    least: int
    """The deepest draft that a request has asked for."""
    survival: Floats
    """Shape (requests, K)."""
    rate: float
    """Committed tokens per second."""
    seconds: Floats
    """Seconds of a step at every depth 0 .. K with its best widths."""
    token_s: float
    """Seconds to verify one more draft token."""
    free: int
    """The depth that would be best if no request had asked for one."""

    def is_pinned(self, floors: Sequence[int]) -> bool:
        """Whether requests that asked for a depth decide this one, and not its cost."""
        pinned = self.least > 0 and bool((self.bounds <= floors).all())
        return self.depth == self.least and (pinned or self.free < self.least)

    @property
    def deepest(self) -> Any:
        """Requests that verify as deep as the best depth, and might verify deeper."""
        return (self.bounds > self.depth) & (self.widths >= self.depth)

    def get_tokens_s(self, tokens: float) -> float:
        """The time that so many tokens are worth."""
        return tokens / max(self.rate, 1e-9)


@dataclass(frozen=True, slots=True)
class Probe:
    """A step beside the best one. ``is_cold``: to learn of requests that are unknown."""

    depth: int
    widths: Ints
    is_cold: bool = False


class Probes:
    """Chooses probes for one planner."""

    def __init__(self) -> None:
        self._budget_s = 0.0
        self._price_s = 0.0
        """Price of the cheapest probe that the budget did not pay; infinite where there is none."""
        self._wait = 1
        self._waited = 0

    @property
    def is_due(self) -> bool:
        """Whether a probe may be chosen at the next step."""
        return self._waited + 1 >= self._wait and self._budget_s >= self._price_s

    def save(self, seconds: float) -> None:
        """A step took so long."""
        self._budget_s += PROBE_SHARE * seconds
        self._budget_s = min(self._budget_s, SAVED_STEPS * seconds)

    def count_step(self) -> None:
        self._waited += 1

    def restart(self) -> None:
        """The best depth has changed: what lies beside it is of interest again."""
        self._wait = 1

    def choose(self, best: Optimum, steps_at: Floats, trials: Floats, age: Ints) -> Probe | None:
        """A probe, if there is something to learn that the budget pays.

        ``steps_at``: steps observed at every depth; ``trials``: of every request and position;
        ``age``: verify steps of every request.
        """
        self._price_s = math.inf
        untimed = steps_at[best.least : best.depth] < TIMED
        if untimed.any() and (probe := self._choose_shallower(best, int(untimed.argmax()))):
            return probe
        deepest = best.deepest
        if best.depth == best.survival.shape[1] or not deepest.any():
            return None
        cold = deepest & (trials[:, best.depth] < COLD_TRIALS) & (age < COLD_STEPS)
        if cold.any():
            return self._choose_deeper(best, cold, is_cold=True)
        if self._waited < self._wait:
            self._price_s = 0.0
            return None
        probe = self._choose_deeper(best, deepest, is_cold=False)
        if probe is not None:
            self._waited = 0
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        return probe

    def _choose_shallower(self, best: Optimum, index: int) -> Probe | None:
        """The depth at ``index`` from the least on, for its time alone."""
        if self._waited <= 2:
            self._price_s = 0.0
            return None
        depth = best.least + index
        positions = np.arange(1, best.depth + 1)
        within = best.survival[:, : best.depth] * (positions <= best.widths[:, None])
        lost_s = best.get_tokens_s(float(within[:, depth:].sum()))
        if not self._pay(lost_s - float(best.seconds[best.depth] - best.seconds[depth])):
            return None
        self._waited = 0
        return Probe(depth, np.minimum(best.widths, depth))

    def _choose_deeper(self, best: Optimum, tried: Any, is_cold: bool) -> Probe | None:
        """One deeper than the best, for the requests that are ``tried``."""
        depth = best.depth
        cost_s = float(best.seconds[depth + 1] - best.seconds[depth])
        cost_s += int(tried.sum()) * best.token_s
        gain_s = best.get_tokens_s(float(best.survival[tried, depth].sum()))
        if not self._pay(cost_s - gain_s):
            return None
        return Probe(depth + 1, np.where(tried, depth + 1, best.widths), is_cold)

    def _pay(self, seconds: float) -> bool:
        """Take a probe's expected loss from the budget, if there is so much."""
        if seconds > self._budget_s:
            self._price_s = min(self._price_s, seconds)
            return False
        self._budget_s -= max(0.0, seconds)
        return True
