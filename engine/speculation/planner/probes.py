"""Probes of the depth planner: steps at other depths than the best.

A verify step teaches every position up to its width. Deeper positions need probes of acceptance,
one deeper than the best, with a few requests. The time of rarely used depths, deeper or shallower,
needs probes with all requests. Two budgets, each a share of the elapsed time, pay their expected
loss. The expectation is what a probe tests, so it never forbids one for long, and a surprise pays
it back. After each probe of acceptance that changed nothing, the wait for the next one doubles. New
requests are probed without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.step_cost import WINDOW

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

PROBE_SHARE = 0.005
"""Share of the time that probes of acceptance may take."""
TIMING_SHARE = 0.004
"""Share of the time that probes of times may take."""
SAVED_STEPS = 0.5
"""Most that a budget saves, in steps. It lends as much while all requests are unknown."""
COLD_TRIALS = 2.0
"""Trials of its own below which a request counts as unknown."""
PROBE_ROWS = 8
"""Most requests that try a deeper position together."""
COLD_STEPS = 8
"""Number of first verify steps in which a request may count as unknown."""
TIMING_STEPS = 2
"""Steps of a probe that shall tell a time. The first one verifies the drafts of the step before."""
WELL_TIMED = WINDOW
"""Known times below which the next depth is timed every ``LONGEST_WAIT`` steps."""
RETIMED = 4.0
"""Known times below which a shallower depth is timed again: nine times that are 240 steps old."""
TIMING_GAP = 8
"""Least steps between shallower probes."""
LONGEST_WAIT = 128
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
    rates: Floats
    """Committed tokens per second at every depth 0 .. K with the best widths; 0 where a depth is
    not open."""
    get_seconds: Callable[[Ints, int], float]
    """Returns the seconds of a step with these widths and this depth."""
    token_s: float
    """Seconds to verify one more draft token."""
    free_depth: int
    """The best depth if no request had asked for one."""

    @property
    def rate(self) -> float:
        """Committed tokens per second."""
        return float(self.rates[self.depth])

    def is_pinned(self, floors: Sequence[int]) -> bool:
        """Return True if requests with their own depth decide the depth, not its cost."""
        is_bounded = self.min_depth > 0 and bool((self.bounds <= floors).all())
        return self.depth == self.min_depth and (is_bounded or self.free_depth < self.min_depth)

    @property
    def deepest(self) -> Any:
        """Mask of the requests that verify as deep as the best depth, and could verify deeper."""
        most = np.minimum(self.bounds, self.survival.shape[1])
        return (most > self.depth) & (self.widths >= self.depth)

    def get_tokens_s(self, tokens: float) -> float:
        """Return the time that ``tokens`` are worth."""
        return tokens / max(self.rate, 1e-9)

    def get_added_s(self, widths: Ints, depth: int) -> float:
        """Return the time that another plan takes longer than this one."""
        return self.get_seconds(widths, depth) - self.get_seconds(self.widths, self.depth)


@dataclass(frozen=True, slots=True)
class Probe:
    """A step at another depth than the best. ``is_cold`` means that it tests unknown requests."""

    depth: int
    widths: Ints
    is_cold: bool = False
    steps: int = 1
    """Steps for which it is kept."""


class _Budget:
    """Time that probes may take: a share of all time."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved_s = self._step_s = 0.0
        self._limit_s = math.inf
        """Most that a probe is charged: what is saved in ``LONGEST_WAIT`` steps. A belief that
        makes probes dear could otherwise forbid the probe that would correct it."""
        self._price_s = 0.0
        """Price of the cheapest probe that was not paid since ``ask``; infinite if none."""

    @property
    def is_enough(self) -> bool:
        return self._saved_s >= self._price_s

    def ask(self, price_s: float = math.inf) -> None:
        """Set the price of the next probe, to know when it can be paid."""
        self._price_s = price_s

    def save(self, step_s: float) -> None:
        """Add the share of a step, up to half a step or to the price that was not paid."""
        self._step_s = step_s
        self._limit_s = self._share * LONGEST_WAIT * step_s
        most_s = max(SAVED_STEPS * step_s, min(self._price_s, self._limit_s))
        saved_s = min(self._saved_s + self._share * step_s, most_s)
        self._saved_s = max(self._saved_s, saved_s)

    def refund(self, seconds: float) -> None:
        self._saved_s = min(self._saved_s + seconds, self._limit_s)

    def pay(self, seconds: float, credit: float = 0.0) -> bool:
        """Deduct a probe's expected loss; return False if there is too little. The budget lends
        the share ``credit`` of what it saves at most."""
        price_s = min(seconds, self._limit_s)
        lacking_s = price_s - credit * SAVED_STEPS * self._step_s
        if lacking_s > self._saved_s:
            self._price_s = min(self._price_s, lacking_s)
            return False
        self._saved_s -= max(0.0, price_s)
        return True


class Probes:
    """Choice of probes for one planner."""

    def __init__(self) -> None:
        self._times, self._drafts = _Budget(TIMING_SHARE), _Budget(PROBE_SHARE)
        """Budgets of probes of step times and of acceptance. Neither starves the other."""
        self._doubtful_s = 0.0
        """Price of the last deeper probe if most of its drafts were believed to be rejected, until
        they are verified."""
        self._payer = self._drafts
        """Budget that paid it."""
        self._wait = 1
        self._waited = 0
        self._untimed = TIMING_GAP
        """Steps since the last probe of a time."""

    @property
    def is_due(self) -> bool:
        """True if a probe may be chosen at the next step."""
        is_waiting = self._waited + 1 < self._wait
        return self._times.is_enough or (self._drafts.is_enough and not is_waiting)

    def save(self, seconds: float) -> None:
        """Add the shares of a step's time to the budgets."""
        self._times.save(seconds)
        self._drafts.save(seconds)

    def refund(self, seconds: float) -> None:
        """Add the time that a step took less than was believed, and probe again without a wait."""
        self._times.refund(seconds)
        self._drafts.refund(seconds)
        self.restart()

    @property
    def is_doubtful(self) -> bool:
        """True if most drafts of a probe that is not verified yet were believed to be rejected."""
        return self._doubtful_s > 0.0

    def conclude(self, outcomes: Sequence[bool]) -> None:
        """Pay a doubtful probe back if most of its drafts were accepted, and probe again without a
        wait. Without outcomes the probe is not verified yet."""
        if 2 * sum(outcomes) > len(outcomes):
            self._payer.refund(self._doubtful_s)
            self.restart()
        if outcomes:
            self._doubtful_s = 0.0

    def count_step(self) -> None:
        self._waited += 1
        self._untimed += 1

    def restart(self) -> None:
        """Probe again without a wait, because the best depth has changed."""
        self._wait = 1

    def choose(self, optimum: Optimum, steps_at: Floats, trials: Floats, age: Ints) -> Probe | None:
        """Return a probe that teaches something and that the budget can pay; None if there is none.

        ``steps_at`` counts the observed steps at every depth, ``trials`` those of every request and
        position, and ``age`` the verify steps of every request.
        """
        self._times.ask()
        self._drafts.ask()
        return self._choose_timing(optimum, steps_at) or self._choose_trial(optimum, trials, age)

    def _choose_timing(self, optimum: Optimum, steps_at: Floats) -> Probe | None:
        """Choose a probe of the time of another depth, with all requests."""
        if optimum.depth > optimum.min_depth and self._untimed >= TIMING_GAP:
            depth = min(optimum.min_depth, optimum.depth - 1, key=steps_at.__getitem__)
            if steps_at[depth] < RETIMED and (probe := self._choose_shallower(optimum, depth)):
                return probe
        is_waiting = self._untimed < LONGEST_WAIT
        if is_waiting or not optimum.deepest.any() or steps_at[optimum.depth + 1] >= WELL_TIMED:
            return None
        probe = self._choose_deeper(optimum, optimum.deepest, self._times, TIMING_STEPS)
        if probe is not None:
            self._untimed = 0
        return probe

    def _choose_trial(self, optimum: Optimum, trials: Floats, age: Ints) -> Probe | None:
        """Choose a probe of acceptance at the next depth, which a few requests tell as well as
        all."""
        if not optimum.deepest.any():
            return None
        tried = trials[:, optimum.depth]
        cold_mask = optimum.deepest & (tried < COLD_TRIALS) & (age < COLD_STEPS)
        if cold_mask.any():
            # What a probe teaches is worth most if no request is known, as in a burst. A few tell
            # little more than their own drafts, and debts would forbid probes once these end.
            rows, credit = _limit_rows(cold_mask, tried), float(cold_mask.mean())
            if optimum.depth:
                credit *= min(1.0, cold_mask.sum() / PROBE_ROWS)
            return self._choose_deeper(optimum, rows, self._drafts, is_cold=True, credit=credit)
        if self._waited < self._wait:
            self._drafts.ask(0.0)
            return None
        probe = self._choose_deeper(optimum, _limit_rows(optimum.deepest, tried), self._drafts)
        if probe is not None:
            self._waited = 0
            self._wait = min(2 * self._wait, LONGEST_WAIT)
        return probe

    def _choose_shallower(self, optimum: Optimum, depth: int) -> Probe | None:
        """Choose a depth below the best, only to measure its time."""
        positions = np.arange(1, optimum.depth + 1)
        survival = optimum.survival[:, : optimum.depth] * (positions <= optimum.widths[:, None])
        lost_s = optimum.get_tokens_s(float(survival[:, depth:].sum()))
        widths = np.minimum(optimum.widths, depth)
        if not self._times.pay(TIMING_STEPS * (lost_s + optimum.get_added_s(widths, depth))):
            return None
        self._untimed = 0
        return Probe(depth, widths, steps=TIMING_STEPS)

    def _choose_deeper(
        self,
        optimum: Optimum,
        mask: Any,
        budget: _Budget,
        steps: int = 1,
        is_cold: bool = False,
        credit: float = 0.0,
    ) -> Probe | None:
        """Choose the depth one above the best, for the requests in ``mask``."""
        depth = optimum.depth
        widths = np.where(mask, depth + 1, optimum.widths)
        survival = optimum.survival[mask, depth]
        lost_s = -optimum.get_tokens_s(float(survival.sum()))
        price_s = steps * (lost_s + optimum.get_added_s(widths, depth + 1))
        if not budget.pay(price_s, credit):
            return None
        self._doubtful_s = max(0.0, price_s) if survival.mean() < 0.5 else 0.0
        self._payer = budget
        return Probe(depth + 1, widths, is_cold, steps)


def _limit_rows(mask: Any, trials: Floats) -> Any:
    """Return the mask of at most ``PROBE_ROWS`` requests of ``mask``, the least tried ones."""
    least_tried = np.where(mask, trials, np.inf).argsort(kind="stable")[:PROBE_ROWS]
    limited = np.zeros_like(mask)
    limited[least_tried] = True
    return limited & mask
