"""Depth of every step: the most expected committed tokens per expected second.

A step verifies d_r draft tokens of each of B requests and then drafts K more for all of them. With
survivals S_rj (survival.py) and step time c (step_cost.py) the rate to maximise is

    (B + sum over r, j <= d_r of S_rj) / c(B, sum of d_r, K),   0 <= d_r <= K.

For a given rate, a draft token is worth verifying if its survival exceeds rate x seconds per
verified token. So one threshold gives the best widths of every K at once, and Dinkelbach's
iteration (Management Science 13, 1967) on the rate finds the optimum in two or three rounds.

K is fixed before the drafts are known; the widths hold for the step that verifies them. A plan is
kept while nothing that was learnt contradicts it, for ``KEPT_STEPS`` at most.

A verify step teaches every position up to its width. Deeper positions, and depth 0, need probes:
steps one deeper than the best. They are paid from a budget, a share of the time that went by, and
wait twice as long after each probe that changed nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.speculation.step_cost import TIMED, StepCostModel
from engine.speculation.survival import SurvivalEstimator

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

ROUNDS = 4
"""Iterations on the rate at most..."""
CLOSE = 5e-3
"""... until it moves by less than this share."""
FIXED_EVERY = 8
"""Steps between estimates of what fixed depths would have taken."""
KEPT_STEPS = 8
"""Steps that a plan is kept for at most while nothing contradicts it."""
RECENT_STEPS = 512
FALL = 0.85
"""Acceptance that is below this share of the first position's has drifted."""


class DepthReason(StrEnum):
    """Why a step has its depth."""

    COST = "cost"
    """It has the highest expected rate."""
    PROBE = "probe"
    """One deeper than that, to learn."""
    COLD = "cold"
    """Requests of which too little is known."""
    DRIFT = "drift"
    """Acceptance falls with the position; less deep than the first positions alone would be."""
    BOUND = "bound"
    """A request's, key's, workload's or operator's bound."""
    FROZEN = "frozen"
    """An operator fixed the depth."""


EXPLORING = (DepthReason.PROBE, DepthReason.COLD)


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What can be set."""

    probe_share: float = 0.01
    """Share of the time that probes may take."""
    probe_saved_steps: float = 0.5
    """The most that the budget saves up, in steps."""
    cold_trials: float = 2.0
    """A request with fewer trials of its own counts as unknown..."""
    cold_steps: int = 8
    """... in its first verify steps."""
    longest_wait: int = 256
    """Steps between probes at most."""
    gain: float = 0.01
    """A depth that is not better than the last one by this share is not changed to."""


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """``depth``: draft tokens to make; ``widths``: how many of them to verify, per request."""

    depth: int
    widths: Ints
    reason: DepthReason
    tokens: float
    """Expected committed tokens of the step that verifies them."""
    seconds: float
    """Expected seconds of a step like this."""


@dataclass(slots=True)
class PlannerTotals:
    """Sums since the start."""

    depths: list[int]
    """Steps at each depth."""
    fixed_s: Floats
    """Expected seconds of the planned tokens at each fixed depth."""
    reasons: dict[DepthReason, int] = field(default_factory=lambda: dict.fromkeys(DepthReason, 0))
    planned_s: float = 0.0
    """Expected seconds of the planned tokens as they were planned."""
    expected_tokens: float = 0.0
    committed_tokens: int = 0
    """Of the same requests."""
    expected_s: float = 0.0
    """Of the observed steps, before learning from them."""
    taken_s: float = 0.0
    planning_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of decoding requests alone, as it came out."""

    seconds: float
    tokens: int
    batch: int
    verified: int
    depth: int
    reason: DepthReason


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, what it was made for, and the tokens expected at every fixed depth."""

    requests: list[str]
    bounds: Ints
    floors: Ints
    plan: DepthPlan
    tokens: Floats

    def is_for(self, requests: Sequence[str], bounds: Ints, floors: Ints) -> bool:
        same = np.array_equal(self.bounds, bounds) and np.array_equal(self.floors, floors)
        return same and self.requests == requests


class DepthPlanner:
    """Plans steps for one engine. Not thread-safe; every call is made by the scheduler."""

    def __init__(
        self,
        depth: int,
        survival: SurvivalEstimator | None = None,
        cost: StepCostModel | None = None,
        settings: PlannerSettings | None = None,
    ) -> None:
        """``depth``: draft tokens the engine can make at most, K >= 1."""
        self.depth = depth
        self.survival = survival or SurvivalEstimator(depth)
        self.cost = cost or StepCostModel(depth)
        self.settings = settings or PlannerSettings()
        self.frozen: int | None = None
        self.totals = PlannerTotals([0] * (depth + 1), np.zeros(depth + 1))
        self.recent: deque[PlannedStep] = deque(maxlen=RECENT_STEPS)
        self._committed = 0
        self._expected: dict[str, float] = {}
        self._reason = DepthReason.COST
        self._last: _Planned | None = None
        self._kept = 0
        self._fresh = True
        """The last plan is not to be kept: a probe, or what was learnt since may change it."""
        self._budget_s = 0.0
        self._price_s = 0.0
        """Of the cheapest probe that the budget did not pay; infinite where there is none."""
        self._wait = 1
        self._waited = 0
        self._counted = 0
        self._best = 0
        self._rate = 0.0
        self._positions = np.arange(1, depth + 1)

    def begin(self, request: str, traffic: str, tenant: str) -> None:
        """``traffic`` names its slice, ``tenant`` whose traffic teaches it."""
        self.survival.add(request, traffic, tenant)

    def move(self, request: str, traffic: str, tenant: str) -> None:
        """A request goes on as other traffic: its reasoning has ended."""
        self.survival.move(request, traffic, tenant)
        self._fresh = True

    def end(self, request: str) -> None:
        self.survival.remove(request)

    def plan(self, requests: Sequence[str], bounds: Ints, floors: Ints | None = None) -> DepthPlan:
        """The next draft. ``bounds`` and ``floors``: the most and the least draft tokens that each
        request may have, shape (requests,); no floors are zeros.
        """
        began = perf_counter()
        floors = np.zeros_like(bounds) if floors is None else floors
        if self._last is None or self._must_plan(self._last, requests, bounds, floors):
            self._last = self._make_plan(requests, bounds, floors)
            self._fresh, self._kept = self._last.plan.reason in EXPLORING, 0
        else:
            self._waited += 1
            self._kept += 1
        plan = self._last.plan
        self._count(self._last)
        self._reason = plan.reason
        self.survival.count_widths(requests, plan.widths)
        self.totals.reasons[plan.reason] += 1
        self.totals.depths[plan.depth] += 1
        self.totals.planning_s += perf_counter() - began
        return plan

    def _must_plan(
        self, last: _Planned, requests: Sequence[str], bounds: Ints, floors: Ints
    ) -> bool:
        """Something was learnt since the last plan, a probe is due, or the requests are others."""
        due = self._waited + 1 >= self._wait and self._budget_s >= self._price_s
        due = due or self._kept >= KEPT_STEPS or self.frozen is not None
        return self._fresh or due or not last.is_for(requests, bounds, floors)

    def _make_plan(self, requests: Sequence[str], bounds: Ints, floors: Ints) -> _Planned:
        conditional = self.survival.conditional(requests)
        survival = np.cumprod(conditional, axis=1)
        survival[self._positions > bounds[:, None]] = 0.0
        least = int(floors.max(initial=0))
        best, seconds = self._optimum(survival, least)
        widths = self._widths(survival, best)
        if self.frozen is not None:
            depth, reason = max(least, min(self.frozen, self.depth)), DepthReason.FROZEN
            widths = np.minimum(bounds, depth)
        else:
            depth, widths, reason = self._explore(
                requests, bounds, survival, best, widths, seconds, least
            )
        if reason is DepthReason.COST:
            reason = _name(conditional, bounds, depth, self.depth)
        if best != self._best:
            self._best, self._wait = best, 1
        widths = np.maximum(widths, floors)
        within = self._positions[:depth] <= widths[:, None]
        accepted = (survival[:, :depth] * within).sum(axis=1)
        tokens = len(requests) + float(accepted.sum())
        self._expected = dict(zip(requests, accepted.tolist(), strict=True))
        plan = DepthPlan(depth, widths, reason, tokens, float(seconds[depth]))
        by_depth = np.concatenate([[0.0], np.cumsum(survival.sum(axis=0))])
        return _Planned([*requests], bounds, floors, plan, len(requests) + by_depth)

    def observe(self, requests: Sequence[str], drafted: Ints, accepted: Ints) -> None:
        """What became of one step's drafts, and of requests that had none."""
        self.survival.observe(requests, drafted, accepted)
        self._fresh = self._fresh or not self._confirms(drafted, accepted)
        self._committed = len(requests) + int(accepted.sum())
        for request, count in zip(requests, accepted.tolist(), strict=True):
            if (expected := self._expected.get(request)) is not None:
                self.totals.expected_tokens += 1 + expected
                self.totals.committed_tokens += 1 + count

    def _confirms(self, drafted: Ints, accepted: Ints) -> bool:
        """Nothing was drafted; or all drafts were accepted, and no plan is deeper than the last."""
        if self._last is None:
            return False
        deepest = self._last.plan.depth == self.depth
        full = deepest and np.array_equal(self._last.plan.widths, self._last.bounds)
        return bool((drafted == accepted).all()) if full else not drafted.any()

    def observe_step(self, batch: int, verified: int, depth: int, seconds: float) -> None:
        """A step of decoding requests alone: what it did and how long it took."""
        if self.cost.is_known:
            self.totals.expected_s += self.cost.step_seconds(batch, verified, depth)
            self.totals.taken_s += seconds
        self.cost.observe(batch, verified, depth, seconds)
        step = PlannedStep(seconds, self._committed, batch, verified, depth, self._reason)
        self.recent.append(step)
        self._budget_s += self.settings.probe_share * seconds
        self._budget_s = min(self._budget_s, self.settings.probe_saved_steps * seconds)

    def describe(self, recent: int = 0) -> dict[str, object]:
        """What it believes and has decided, in types that JSON has, and the newest steps."""
        totals = self.totals
        return {
            "frozen": self.frozen,
            "steps_by_depth": totals.depths,
            "steps_by_reason": {reason.value: count for reason, count in totals.reasons.items()},
            "expected_tokens": totals.expected_tokens,
            "committed_tokens": totals.committed_tokens,
            "expected_s": totals.expected_s,
            "taken_s": totals.taken_s,
            "planning_s": totals.planning_s,
            "planned_s": totals.planned_s,
            "fixed_s": totals.fixed_s.tolist(),
            "cost": self.cost.describe(),
            "slices": self.survival.describe(),
            "recent": [astuple(step) for step in list(self.recent)[-recent:]] if recent else [],
        }

    def _optimum(self, survival: Floats, least: int) -> tuple[int, Floats]:
        """Best depth, and seconds of a step at every depth with its best widths."""
        rate, batch = self._rate, len(survival)
        tokens = np.full(self.depth + 1, float(batch))
        verified = np.zeros(self.depth + 1)
        base, per_token = self.cost.line(batch)
        token_s = self.cost.per_token(batch)
        for _ in range(ROUNDS):
            worth = survival > rate * token_s
            np.cumsum((survival * worth).sum(axis=0), out=tokens[1:])
            tokens[1:] += batch
            np.cumsum(worth.sum(axis=0), out=verified[1:])
            seconds = base + per_token * verified
            rates = tokens / seconds
            rates[:least] = 0.0
            rates[least + 1 :] *= worth[:, least:].any(axis=0)
            best = int(rates.argmax())
            found = float(rates[best])
            if abs(found - rate) <= CLOSE * found:
                break
            rate = found
        self._rate = found
        if rates[self._best] >= (1 - self.settings.gain) * found:
            best = self._best
        return best, seconds

    def _widths(self, survival: Floats, depth: int) -> Ints:
        threshold = self._rate * self.cost.per_token(len(survival))
        return np.asarray((survival[:, :depth] > threshold).sum(axis=1))

    def _explore(
        self,
        requests: Sequence[str],
        bounds: Ints,
        survival: Floats,
        best: int,
        widths: Ints,
        seconds: Floats,
        least: int,
    ) -> tuple[int, Ints, DepthReason]:
        """A step beside the best where the budget pays for it: shallower for its time alone."""
        self._waited += 1
        self._price_s = math.inf
        untimed = self.cost.steps_at(len(requests))[least:best] < TIMED
        if untimed.any() and self._waited <= 2:
            self._price_s = 0.0
        elif untimed.any():
            depth = least + int(untimed.argmax())
            within = survival[:, :best] * (self._positions[:best] <= widths[:, None])
            lost_s = float(within[:, depth:].sum()) / max(self._rate, 1e-9)
            if self._pay(lost_s - float(seconds[best] - seconds[depth])):
                self._waited = 0
                return depth, np.minimum(widths, depth), DepthReason.PROBE
        deepest = (bounds > best) & (widths >= best)
        if best == self.depth or not deepest.any():
            return best, widths, DepthReason.COST
        cold = deepest & (self.survival.trials(requests)[:, best] < self.settings.cold_trials)
        cold &= self.survival.age(requests) < self.settings.cold_steps
        if not cold.any() and self._waited < self._wait:
            self._price_s = 0.0
            return best, widths, DepthReason.COST
        tried = cold if cold.any() else deepest
        cost_s = float(seconds[best + 1] - seconds[best])
        cost_s += int(tried.sum()) * self.cost.per_token(len(requests))
        gain_s = float(survival[tried, best].sum()) / max(self._rate, 1e-9)
        if not self._pay(cost_s - gain_s):
            return best, widths, DepthReason.COST
        if not cold.any():
            self._waited = 0
            self._wait = min(2 * self._wait, self.settings.longest_wait)
        reason = DepthReason.COLD if cold.any() else DepthReason.PROBE
        return best + 1, np.where(tried, best + 1, widths), reason

    def _pay(self, seconds: float) -> bool:
        """Take a probe's expected loss from the budget, if there is so much."""
        if seconds > self._budget_s:
            self._price_s = min(self._price_s, seconds)
            return False
        self._budget_s -= max(0.0, seconds)
        return True

    def _count(self, planned: _Planned) -> None:
        totals, plan = self.totals, planned.plan
        self._counted += 1
        if self._counted % FIXED_EVERY or not self.cost.is_known:
            return
        batch = len(planned.requests)
        seconds = self.cost.seconds(batch, np.arange(self.depth + 1) * float(batch))
        totals.planned_s += FIXED_EVERY * plan.seconds
        totals.fixed_s += FIXED_EVERY * plan.tokens * seconds / planned.tokens


def _name(conditional: Floats, bounds: Ints, depth: int, most: int) -> DepthReason:
    """Why the best depth is not deeper."""
    if depth == most:
        return DepthReason.COST
    if (bounds <= depth).all():
        return DepthReason.BOUND
    first, behind = conditional[:, 0].mean(), conditional[:, depth].mean()
    return DepthReason.DRIFT if depth and behind < FALL * first else DepthReason.COST
