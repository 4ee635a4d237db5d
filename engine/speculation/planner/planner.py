"""Depth of every step: the most expected committed tokens per expected second.

A step verifies d_r draft tokens of each of B requests and then drafts K more for all of them. With
survivals S_rj (survival.py) and step time c (step_cost.py) the rate to maximise is

    (B + sum over r, j <= d_r of S_rj) / c(B, sum of d_r, K),   0 <= d_r <= K.

At the best rate, a draft token is worth verifying if its survival exceeds rate x seconds per
verified token. One threshold on survival therefore gives the widths of all requests, and the best
pair of K and threshold is the best plan.

K is fixed before the drafts are known; the widths apply to the step that verifies them. A plan is
kept for a few steps, and longer while no drafts are verified. Observations made meanwhile are
learnt at the next plan. A step that keeps its plan runs plain Python only, because next to a model,
with cold caches, a single numpy call takes as long as the whole path. Probes (probes.py) explore
other depths.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.planner.found_share import FoundShare
from eaglegate.engine.speculation.planner.probes import Optimum, Probes
from eaglegate.engine.speculation.planner.step_cost import SURPRISE, ObservedStep, StepCostModel
from eaglegate.engine.speculation.planner.step_graphs import StepGraphs
from eaglegate.engine.speculation.planner.survival import SurvivalEstimator
from eaglegate.engine.speculation.planner.uniform import prefer_uniform
from eaglegate.engine.types import DepthReason

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]

THRESHOLDS = 32
"""Most thresholds of a plan."""
GAIN = 0.01
"""Least relative gain for which the depth is changed."""
FIXED_EVERY = 8
"""Steps between estimates of the time of fixed depths."""
KEPT_STEPS = 16
"""Most steps for which a plan is kept while no draft of its requests is verified, or all drafts of
the deepest plan are accepted."""
KEPT_WITH_NEWS = 2
"""The same, if drafts of its requests were verified since."""
FIRST_STEPS = 2
"""First verify steps of a request, the most informative ones. A surprise in them leads to a new
plan at once."""
BACKLOG = 4 * KEPT_STEPS
"""Most observed steps or ended requests that wait for a plan. More are learnt without a plan, so
that the first plan after a long time is as quick as others."""
RECENT_STEPS = 512
FALL = 0.85
"""Acceptance below this share of the first position's counts as drift."""


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """Plan of a step. ``depth`` is the number of draft tokens to make, ``widths`` the number to
    verify for each request."""

    depth: int
    widths: list[int]
    reason: DepthReason
    tokens: float
    """Expected committed tokens of the step that verifies them."""
    seconds: float
    """Expected seconds of a step of this kind."""
    rates: tuple[float, ...] = ()
    """Expected committed tokens per second at every depth 0 .. K with its best widths; 0 where a
    depth was not open, empty before the times of steps are known."""
    token_price: float = 0.0
    """Tokens that the time to verify one more token would bring, and so the least survival of a
    token that is verified."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Outcome of one step with decoding requests only, and the plan whose drafts it verified."""

    seconds: float
    tokens: int
    batch: int
    verified: int
    drafted: int
    """Draft tokens that were made for each request in its time."""
    plan: DepthPlan | None

    def describe(self) -> dict[str, object]:
        row: dict[str, object] = {
            name: getattr(self, name)
            for name in ("seconds", "tokens", "batch", "verified", "drafted")
        }
        for name in ("depth", "reason", "rates", "token_price"):
            row[name] = getattr(self.plan, name, None)
        return row


@dataclass(slots=True)
class PlannerTotals:
    """Sums over all steps since the start."""

    depths: list[int]
    """Steps at each depth."""
    fixed_s: Floats
    """Expected seconds of the planned tokens at each fixed depth."""
    reasons: dict[DepthReason, int] = field(default_factory=lambda: dict.fromkeys(DepthReason, 0))
    planned_s: float = 0.0
    """Expected seconds of the planned tokens, as planned."""
    expected_tokens: float = 0.0
    committed_tokens: int = 0
    """Tokens that the same requests committed."""
    expected_s: float = 0.0
    """Expected seconds of the observed steps, before learning from them."""
    taken_s: float = 0.0
    planning_s: float = 0.0
    undrafted: int = 0
    """Steps since the last one with a depth above 0."""


@dataclass(slots=True)
class _PlanState:
    """A plan, and the requests and bounds for which it was made."""

    requests: list[str]
    bounds: list[int]
    floors: list[int]
    plan: DepthPlan
    expected: dict[str, float]
    """Expected number of accepted draft tokens of each request."""
    fixed_tokens: Floats
    """Expected tokens at every fixed depth."""
    fixed_verified: Floats
    """Expected verified draft tokens at every fixed depth."""
    steps: int = 0
    """Number of steps for which the plan was used."""
    counted_steps: int = 0
    """Number of those steps that are in the totals."""
    is_whole: bool = True
    """True if the requests are the ones for which the plan was made."""

    def is_for(self, bounds: list[int], floors: list[int]) -> bool:
        """Return True if the plan still holds.

        Bounds that only fall, as for answers near their end, cut widths. They change nothing else
        while one of them reaches the depth.
        """
        if self.floors != floors:
            return False
        falls = zip(bounds, self.bounds, strict=True)
        return self.bounds == bounds or (
            max(bounds, default=0) >= self.plan.depth
            and all(bound <= last_bound for bound, last_bound in falls)
        )

    @property
    def is_full(self) -> bool:
        """True if every request verifies all drafts that it may."""
        full_widths = (min(bound, self.plan.depth) for bound in self.bounds)
        return self.plan.depth > 0 and all(map(operator.le, full_widths, self.plan.widths))

    def keep(
        self, requests: Sequence[str], bounds: list[int], floors: list[int]
    ) -> _PlanState | None:
        """Return the plan without ended requests, and with new ones if all requests verify all
        drafts; None if it does not hold."""
        rows = zip(self.bounds, self.floors, self.plan.widths, strict=True)
        rows_by_request = dict(zip(self.requests, rows, strict=True))
        arrivals = [request for request in requests if request not in rows_by_request]
        if len(arrivals) == len(requests) or (arrivals and not self.is_full):
            return None
        depth = self.plan.depth
        next_rows = [
            rows_by_request.get(request, (bound, min(floor, depth), min(bound, depth)))
            for request, bound, floor in zip(requests, bounds, floors, strict=True)
        ]
        next_bounds, next_floors, widths = map(list, zip(*next_rows, strict=True))
        state = replace(
            self,
            requests=[*requests],
            bounds=next_bounds,
            floors=next_floors,
            plan=replace(self.plan, widths=widths),
            counted_steps=self.steps,
            is_whole=False,
        )
        return state if state.is_for(bounds, floors) else None


class DepthPlanner:
    """Planner of the steps of one engine. Not thread-safe; the scheduler makes every call."""

    def __init__(
        self,
        depth: int,
        always_full: bool = False,
        lookup: bool = False,
        graphs: StepGraphs | None = None,
    ) -> None:
        """Plan up to ``depth`` draft tokens, K >= 1. ``always_full``, ``graphs``: see
        ``StepCostModel``.

        With ``lookup``, drafts are looked up and may not be found.
        """
        self.depth = depth
        self._found = FoundShare(depth) if lookup else None
        self.survival = SurvivalEstimator(depth)
        self.cost = StepCostModel(depth, always_full, lookup=lookup, graphs=graphs)
        self.frozen_depth: int | None = None
        self.totals = PlannerTotals([0] * (depth + 1), np.zeros(depth + 1))
        self.recent: deque[PlannedStep] = deque(maxlen=RECENT_STEPS)
        self._probes = Probes()
        self._observed: list[tuple[Sequence[str], Sequence[int], Sequence[int]]] = []
        """Observed steps that are not learnt yet, as (requests, drafted, accepted)."""
        self._ended: list[str] = []
        """Ended requests, which may still have observed steps to learn."""
        self._committed = 0
        self._probe_steps = 0
        """Steps of the last plan, if it is a probe."""
        self._last: _PlanState | None = None
        self._fresh = True
        """True if the next step needs a new plan, because of a probe, a moved request or a
        surprise."""
        self._news = False
        """True if drafts were verified since the last plan whose outcome may change it."""
        self._first_steps: dict[str, int] = {}
        """Remaining verify steps of new requests until they have had ``FIRST_STEPS``."""
        self._surprised = False
        """True if the last step took another time than expected."""
        self._counted = 0
        self._best = 0
        self._rate = 0.0
        self._positions = np.arange(1, depth + 1)

    def begin(self, request: str, traffic: str, tenant: str) -> None:
        """Add a request. ``traffic`` names its slice, ``tenant`` the tenant whose traffic it learns
        from."""
        if request in self._ended:
            self._learn()
        self.survival.add(request, traffic, tenant)
        self._first_steps[request] = FIRST_STEPS

    def move(self, request: str, traffic: str, tenant: str) -> None:
        """Move a request to another slice, after its reasoning has ended."""
        self.survival.move(request, traffic, tenant)
        self._fresh = True

    def end(self, request: str) -> None:
        """End a request. It is forgotten once its last observations are learnt."""
        self._first_steps.pop(request, None)
        self._ended.append(request)
        self._limit_backlog()

    def plan(
        self, requests: Sequence[str], bounds: list[int], floors: list[int] | None = None
    ) -> DepthPlan:
        """Plan the next draft. ``bounds`` and ``floors`` are the most and the least draft tokens of
        each request; without floors they are zero."""
        start_s = perf_counter()
        floors = [0] * len(bounds) if floors is None else floors
        state = self._keep(requests, bounds, floors)
        if state is not self._last:
            self._count_steps()
        if state is None:
            self._learn()
            state = self._make_plan(requests, bounds, floors)
            # A plan in guessed seconds is not kept.
            self._fresh, self._news = not self.cost.is_known, False
        else:
            self._probes.count_step()
        self._last = state
        state.steps += 1
        self._fresh = self._fresh or state.steps == self._probe_steps
        self.totals.planning_s += perf_counter() - start_s
        return state.plan

    def get_token_price(self, batch: int) -> float | None:
        """Return the cost of one more verified token, in tokens that its time would bring; None
        until plans and step times are known."""
        return (
            self._rate * self.cost.per_token(batch) if self.cost.is_known and self._rate else None
        )

    def list_useful_widths(self, requests: Sequence[str], depth: int) -> list[int]:
        """Return the number of ``depth`` drafts worth verifying, for requests outside the last
        plan."""
        survival = np.cumprod(self.survival.conditional(requests)[:, :depth], axis=1)
        threshold = self._rate * self.cost.per_token(len(requests))
        widths: list[int] = (survival > threshold).sum(axis=1).tolist()
        return widths

    def _keep(
        self, requests: Sequence[str], bounds: list[int], floors: list[int]
    ) -> _PlanState | None:
        """Return the last plan; None if it is too old, a probe is due, or it does not fit the
        requests."""
        state = self._last
        if state is None or self._fresh or self._probes.is_due or self.frozen_depth is not None:
            return None
        if state.steps > (KEPT_WITH_NEWS if self._news else KEPT_STEPS):
            return None
        if state.requests == requests:
            return state if state.is_for(bounds, floors) else None
        return state.keep(requests, bounds, floors)

    def _make_plan(
        self, requests: Sequence[str], bounds: list[int], floors: list[int]
    ) -> _PlanState:
        limits, min_depth = np.array(bounds), max(floors, default=0)
        conditional = self.survival.conditional(requests)
        survival = np.cumprod(conditional, axis=1)  # (requests, K)
        # A token beyond a request's bound is worth nothing. The search then needs no bounds.
        survival[self._positions > limits[:, None]] = 0.0
        lookup_rates = self._estimate_found(requests, survival)
        optimum = self._find_optimum(survival, lookup_rates, limits, min_depth)
        optimum = prefer_uniform(optimum, floors, self.cost, self._best, GAIN)
        self._rate = optimum.rate
        if optimum.depth != self._best:
            self._best = optimum.depth
            self._probes.restart()
        depth, widths, reason, self._probe_steps = self._choose(requests, optimum)
        if reason is DepthReason.COST and optimum.is_pinned(floors):
            reason = DepthReason.PINNED
        elif reason is DepthReason.COST:
            reason = _find_reason(conditional, limits, depth, self.depth)
        widths = np.maximum(widths, floors)  # a depth of its own is kept, whether it pays or not
        width_mask = self._positions[:depth] <= widths[:, None]
        accepted_tokens = (survival[:, :depth] * width_mask).sum(axis=1)
        tokens = len(requests) + float(accepted_tokens.sum())
        plan = DepthPlan(
            depth,
            widths.tolist(),
            reason,
            tokens,
            seconds=optimum.get_seconds(widths, depth),
            rates=tuple(optimum.rates.tolist()) if self.cost.is_known else (),
            token_price=optimum.rate * optimum.token_s,
        )
        expected = dict(zip(requests, accepted_tokens.tolist(), strict=True))
        # What the same requests would commit and verify at every fixed depth, for the regret.
        fixed_tokens = len(requests) + np.concatenate([[0.0], np.cumsum(survival.sum(axis=0))])
        fixed_verified = np.concatenate([[0.0], np.cumsum(lookup_rates.sum(axis=0))])
        return _PlanState([*requests], bounds, floors, plan, expected, fixed_tokens, fixed_verified)

    def _estimate_found(self, requests: Sequence[str], survival: Floats) -> Floats:
        """Return the expected share of planned drafts that are found, in shape (requests,
        depth)."""
        if self._found is None:
            return np.ones_like(survival)
        return np.maximum(self._found.estimate(requests), survival)

    def _choose(
        self, requests: Sequence[str], optimum: Optimum
    ) -> tuple[int, Ints, DepthReason, int]:
        """Choose the optimum, a depth that an operator holds, or a probe."""
        self._probes.count_step()
        if self.frozen_depth is not None:
            depth = max(optimum.min_depth, min(self.frozen_depth, self.depth))
            return depth, np.minimum(optimum.bounds, depth), DepthReason.FROZEN, 0
        steps_at = self.cost.steps_at(len(requests))
        trials, age = self.survival.trials(requests), self.survival.age(requests)
        probe = self._probes.choose(optimum, steps_at, trials, age)
        if probe is None:
            return optimum.depth, optimum.widths, DepthReason.COST, 0
        reason = DepthReason.COLD if probe.is_cold else DepthReason.PROBE
        return probe.depth, probe.widths, reason, probe.steps

    def observe(
        self,
        requests: Sequence[str],
        drafted: Sequence[int],
        accepted: Sequence[int],
        hits: Sequence[int] | None = None,
        other_tokens: int = 0,
    ) -> None:
        """Observe one step's drafts, and requests that had none.

        ``drafted`` counts planned drafts, ``hits`` the planned drafts that a lookup found.
        ``other_tokens`` counts the tokens that the step's other requests committed.
        """
        if self._found is not None and hits is not None:
            self._found.observe(requests, drafted, hits)
        self._observed.append((requests, drafted, accepted))
        self._limit_backlog()
        self._committed = len(requests) + sum(accepted) + other_tokens
        if self._last is None:
            return
        if self._probes.is_doubtful:
            outcomes = zip(drafted, accepted, strict=True)
            self._probes.conclude(
                [hits > self._best for made, hits in outcomes if made > self._best]
            )
        state = self._last
        self._news = self._news or not self._confirms(state, drafted, accepted)
        if self._first_steps and self._is_surprised(requests, drafted, accepted):
            self._fresh = True
        if state.is_whole and state.requests == requests:
            self.totals.expected_tokens += state.plan.tokens
            self.totals.committed_tokens += self._committed - other_tokens
            return
        for request, count in zip(requests, accepted, strict=True):
            if (expected := state.expected.get(request)) is not None:
                self.totals.expected_tokens += 1 + expected
                self.totals.committed_tokens += 1 + count

    def _is_surprised(
        self, requests: Sequence[str], drafted: Sequence[int], accepted: Sequence[int]
    ) -> bool:
        """Count the first verify steps of requests. Return True if any request rejected most of its
        drafts, or accepted all of them and more were possible."""
        countdowns, surprise = self._first_steps, False
        for request, num_drafted, num_accepted in zip(requests, drafted, accepted, strict=True):
            if not num_drafted or request not in countdowns:
                continue
            countdowns[request] -= 1
            if not countdowns[request]:
                del countdowns[request]
            surprise = (
                surprise
                or 2 * num_accepted < num_drafted
                or num_accepted == num_drafted < self.depth
            )
        return surprise

    def _confirms(self, state: _PlanState, drafted: Sequence[int], accepted: Sequence[int]) -> bool:
        """Return True if a step confirms the last plan: nothing was drafted, or all drafts were
        accepted and no plan can be deeper."""
        if state.plan.depth == self.depth and state.plan.widths == state.bounds:
            return drafted == accepted
        return not any(drafted)

    def _limit_backlog(self) -> None:
        if max(len(self._observed), len(self._ended)) >= BACKLOG:
            self._learn()

    def _learn(self) -> None:
        self._count_steps()
        for requests, steps in groupby(self._observed, key=operator.itemgetter(0)):
            _, drafted, accepted = zip(*steps, strict=True)
            self.survival.observe(requests, drafted, accepted)
        for request in self._ended:
            self.survival.remove(request)
            if self._found is not None:
                self._found.remove(request)
        self._observed.clear()
        self._ended.clear()

    def observe_step(self, step: ObservedStep, plan: DepthPlan | None = None) -> None:
        """Learn from the time of one step, which has verified the drafts of ``plan``."""
        expected_s, taken_s = self.cost.observe(step)
        self.totals.expected_s += expected_s
        self.totals.taken_s += taken_s
        if step.prompt:
            return
        planned_step = PlannedStep(
            step.seconds, self._committed, step.batch, step.verified, step.depth, plan
        )
        self.recent.append(planned_step)
        # A single step may be an outlier. Two in a row say that the plan's times are wrong.
        is_surprise = abs(taken_s - expected_s) > SURPRISE * expected_s
        self._fresh = self._fresh or (is_surprise and self._surprised)
        self._surprised = is_surprise
        # Only a probe is paid back. Noise in other steps would pay for probes without end.
        if is_surprise and taken_s < expected_s and step.depth != self._best:
            self._probes.refund(expected_s - taken_s)
        self._probes.save(step.seconds)

    def describe(self, recent: int = 0) -> dict[str, object]:
        """Describe the planner's estimates and decisions, and its newest steps, as JSON types."""
        self._learn()
        totals = self.totals
        return {
            "frozen": self.frozen_depth,
            "steps_by_depth": totals.depths,
            "steps_since_draft": totals.undrafted,
            "steps_by_reason": {reason.value: count for reason, count in totals.reasons.items()},
            "expected_tokens": totals.expected_tokens,
            "committed_tokens": totals.committed_tokens,
            "expected_s": totals.expected_s,
            "taken_s": totals.taken_s,
            "planning_s": totals.planning_s,
            "planned_s": totals.planned_s,
            "fixed_s": totals.fixed_s.tolist(),
            "cost": self.cost.describe(),
            "traffic": self.survival.describe(),
            "recent": [step.describe() for step in list(self.recent)[-recent:]] if recent else [],
        }

    def copy_slices(self) -> Callable[[], list[dict[str, object]]]:
        """See ``SurvivalEstimator.copy_slices``."""
        self._learn()
        return self.survival.copy_slices()

    def _find_optimum(
        self, survival: Floats, lookup_rates: Floats, bounds: Ints, min_depth: int
    ) -> Optimum:
        """Find the depth and the threshold with the highest rate, and keep the last depth if it is
        almost as good.

        ``survival`` and ``lookup_rates`` have the shape (requests, K), ``bounds`` (requests,). No
        depth below ``min_depth`` is chosen, because a request has asked for that depth.
        """
        batch = len(survival)
        # Value of verifying a token: its probability to be committed, if the draft is found. One
        # that is not found costs nothing. The minimum over the positions before makes the values
        # fall, so that the tokens above a threshold are the first ones: a width.
        value = np.minimum.accumulate(survival / lookup_rates, axis=1)  # (requests, K)
        thresholds = _list_thresholds(value)  # (T,), falling
        # Sums over the tokens of at least the value of every threshold, up to every depth.
        classes = np.searchsorted(-thresholds, -value)  # (requests, K)
        tokens = batch + _sum_up(survival, classes, len(thresholds))  # (K + 1, T)
        verified = _sum_up(lookup_rates * (survival > 0.0), classes, len(thresholds))
        seconds = self.cost.mixed_seconds(batch, verified)
        rates = tokens / seconds
        free_depth = int(rates.max(axis=1).argmax())
        rates[:min_depth] = 0.0
        # A depth whose last draft no request verifies is dropped. Otherwise noise in the times
        # of two depths could choose it, and the draft model would run for nothing.
        rates[min_depth + 1 :] *= np.diff(verified, axis=0)[min_depth:] > 0.0
        best = rates.argmax(axis=1)  # (K + 1,), the best threshold at every depth
        depths = np.arange(self.depth + 1)
        best_rates = rates[depths, best]
        depth = int(best_rates.argmax())
        # Hysteresis: otherwise noise in two nearly equal rates would change the depth at every
        # plan, and each change restarts the probes.
        if best_rates[self._best] >= (1 - GAIN) * best_rates[depth]:
            depth = self._best
        widths = (value[:, :depth] >= thresholds[best[depth]]).sum(axis=1)
        token_s = self.cost.per_token(batch, float(verified[depth, best[depth]]))

        def get_seconds(widths: Ints, depth: int) -> float:
            if self._found is None:
                return self.cost.estimate(widths, depth)
            mask = self._positions <= widths[:, None]
            return self.cost.estimate(widths, depth, float((lookup_rates * mask).sum()))

        return Optimum(
            depth,
            np.minimum(widths, bounds),
            bounds,
            min_depth,
            survival,
            best_rates,
            get_seconds,
            token_s,
            free_depth,
        )

    def _count_steps(self) -> None:
        """Add the steps of the last plan to the totals."""
        state, totals = self._last, self.totals
        if state is None or state.steps == state.counted_steps:
            return
        plan, steps = state.plan, state.steps - state.counted_steps
        state.counted_steps = state.steps
        self.survival.count_widths(state.requests, plan.widths, steps)
        totals.reasons[plan.reason] += steps
        totals.depths[plan.depth] += steps
        totals.undrafted = 0 if plan.depth else totals.undrafted + steps
        self._counted += steps
        if self._counted < FIXED_EVERY or not self.cost.is_known:
            return
        batch, num_steps = len(state.requests), self._counted
        self._counted = 0
        seconds = self.cost.seconds(batch, state.fixed_verified)
        totals.planned_s += num_steps * plan.seconds
        totals.fixed_s += num_steps * plan.tokens * seconds / state.fixed_tokens


def _list_thresholds(value: Floats) -> Floats:
    """Return values, falling, at which the tokens to verify may end: all of them, or quantiles."""
    values = np.sort(value, axis=None)[::-1]
    if len(values) <= THRESHOLDS:
        return values
    return values[np.linspace(0, len(values) - 1, THRESHOLDS).astype(np.int64)]


def _sum_up(amounts: Floats, classes: Ints, num_classes: int) -> Floats:
    """Return the sums of ``amounts`` (requests, K) over the positions up to every depth and over
    the classes up to every class, in shape (K + 1, num_classes)."""
    depth = amounts.shape[1]
    places = classes + num_classes * np.arange(depth)
    sums = np.bincount(places.ravel(), amounts.ravel(), depth * num_classes)
    by_class = sums.reshape(depth, num_classes).cumsum(axis=1)
    return np.vstack([np.zeros(num_classes), by_class.cumsum(axis=0)])


def _find_reason(conditional: Floats, bounds: Ints, depth: int, max_depth: int) -> DepthReason:
    """Return the reason why the best depth is not deeper."""
    if depth == max_depth:
        return DepthReason.COST
    if (bounds <= depth).all():
        return DepthReason.BOUND
    # Conditional acceptance, not survival: survival falls with every position, even where
    # acceptance does not.
    head_acceptance, tail_acceptance = conditional[:, 0].mean(), conditional[:, depth].mean()
    return (
        DepthReason.DRIFT
        if depth and tail_acceptance < FALL * head_acceptance
        else DepthReason.COST
    )
