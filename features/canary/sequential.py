"""A sequential test of a change, valid after every block of traffic.

Time is divided into *slots* in which one arm, the control or the candidate, serves all traffic. Two
slots in random order form a *block*. A block yields one number per metric: the difference of the
arms' means over sessions (of logarithms, for ratios). Sessions within a slot are alike and share
its load, so the independent units are blocks, never requests or steps. If arms are drawn by
session, both serve at the same time, and a block is a span of time with the sessions that begin in
it. A session that counted in two blocks would make these blocks dependent.

A block's weight is its precision: the difference of the means of n and m sessions has a variance
proportional to 1/n + 1/m. A quiet hour cannot outweigh a busy one.

The mean of the differences has a confidence *sequence*: intervals that contain the true value at
all times simultaneously with probability 1 - alpha, so that it is sound to stop at the first clear
answer. It is the anytime-valid t interval: the e-process of the t test with a normal mixture over
the effect size and the right Haar prior over the scale (Lai 1976; Perez-Ortiz et al. 2022), exact
for normal differences of unknown variance proportional to 1 / weight. Differences are clipped and
their variance has a floor, so that neither an outlier nor a run of equal blocks decides.

A drift over time makes neighbouring blocks alike. With slots, the random order of each pair gives
the drift a random sign, so the differences stay uncorrelated. Arms that serve at the same time have
no such sign: one may be slower for minutes, such as a worker on a shared host. Their blocks then
count as fewer independent ones (``measure_dependence``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

from eaglegate.features.canary.outcomes import CanaryVerdict

SPREAD = 1.0
"""Variance of the mixture over effect sizes, in units of a block's standard deviation."""
STRONGEST = 0.95
"""The largest assumed correlation between neighbouring blocks."""


class Scale(StrEnum):
    """Scale on which a metric's arms are compared."""

    RATIO = "ratio"
    """Candidate over control, from means of logarithms; values must be positive."""
    DIFFERENCE = "difference"
    """Candidate minus control, for shares."""


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A metric that must not become worse than ``margin``.

    A ratio's margin is relative: 0.02 is two per cent. ``floor`` is the smallest standard deviation
    assumed for a block's difference.
    """

    metric: str
    higher_is_better: bool
    margin: float
    scale: Scale = Scale.RATIO
    floor: float = 0.005
    clip: float = 1.0
    by_slice: bool = False
    """Compare the arms within each slice, and average the differences. The mix of traffic changes
    from slot to slot, and acceptance differs more between workloads than between drafts.
    """

    @property
    def prefix(self) -> str:
        """Name prefix of the metric's slices, as in ``acceptance:tools``."""
        return f"{self.metric}:"

    def orient(self, difference: float) -> float:
        """Clip the difference, and orient it so that higher is better."""
        clipped_value = max(-self.clip, min(self.clip, difference))
        return clipped_value if self.higher_is_better else -clipped_value

    @property
    def least(self) -> float:
        """The worst oriented difference that is tolerated."""
        return math.log1p(-self.margin) if self.scale is Scale.RATIO else -self.margin


@dataclass(frozen=True, slots=True)
class Interval:
    """An anytime-valid interval of a mean."""

    mean: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True)
class BlockDifference:
    """Difference of one metric in one block."""

    value: float
    weight: float = 1.0
    """1 / variance, up to a factor common to all blocks."""


def find_interval(
    differences: Sequence[BlockDifference],
    alpha: float,
    floor: float = 0.0,
    spread: float = SPREAD,
    dependent: bool = False,
) -> Interval:
    """Return the interval after these blocks; it is infinite while there are too few.

    This is the t test of a line through the origin: sqrt(weight) * value on sqrt(weight). Weights
    are in units of the first block's weight, which is known before anything is tested. ``floor`` is
    the smallest standard deviation assumed for a block of mean weight. ``dependent`` means that
    blocks may resemble their neighbours.
    """
    count = len(differences)
    if count < 2:
        return Interval(differences[0].value if differences else 0.0, -math.inf, math.inf, count)
    weights = [difference.weight / differences[0].weight for difference in differences]
    total = math.fsum(weights)
    mean = (
        math.fsum(w * difference.value for w, difference in zip(weights, differences, strict=True))
        / total
    )
    residuals = [
        math.sqrt(w) * (difference.value - mean)
        for w, difference in zip(weights, differences, strict=True)
    ]
    # n and the sum of weights; blocks that resemble each other count as fewer independent ones.
    dependence = measure_dependence(residuals) if dependent else 1.0
    independent, information = count / dependence, total / dependence
    # The e-process of the t statistic, with s = t^2 / (n - 1) and scale = 1 + information * spread:
    #     E = scale^(-1/2) * ((1 + s) / (1 + s / scale))^(n / 2)
    # The interval holds the means with E < 1 / alpha. At its ends (1 + s) / (1 + s / scale) is
    # ``growth``. That fraction stays below ``scale`` for every t, so the interval may be infinite.
    scale = 1 + information * spread
    growth = (math.sqrt(scale) / alpha) ** (2 / independent)
    if growth >= scale or independent <= 1:
        return Interval(mean, -math.inf, math.inf, count)
    squared_t = (independent - 1) * (growth - 1) / (1 - growth / scale)
    squares = math.fsum(residual * residual for residual in residuals)
    deviation = max(math.sqrt(squares / (count - 1)), floor * math.sqrt(total / count))
    # t = distance from the mean / (deviation / sqrt(information)), solved for the distance.
    reach = deviation * math.sqrt(squared_t / information)
    return Interval(mean, mean - reach, mean + reach, count)


def measure_dependence(residuals: Sequence[float]) -> float:
    """Estimate how many blocks are worth one independent block, from the residuals.

    The formula is that of a first-order autoregression, (1 + r) / (1 - r). With few blocks, the
    estimated correlation r of neighbours is too small on average (Kendall 1954) and uncertain, so
    both errors are added to it.
    """
    count, squares = len(residuals), math.fsum(residual * residual for residual in residuals)
    if not squares:
        return 1.0
    sample_correlation = (
        math.fsum(residual * successor for residual, successor in pairwise(residuals)) / squares
    )
    correlation = (
        sample_correlation + (1 + 4 * max(sample_correlation, 0.0)) / count + 1 / math.sqrt(count)
    )
    clipped_correlation = min(max(correlation, 0.0), STRONGEST)
    return (1 + clipped_correlation) / (1 - clipped_correlation)


SessionValues = Mapping[Hashable, Sequence[float]]
"""Values of one metric in one slot, by session."""


@dataclass(frozen=True, slots=True)
class SlotPair:
    """One slot of each arm: the values of every metric by session."""

    control: Mapping[str, SessionValues]
    candidate: Mapping[str, SessionValues]

    def compare(self, guardrail: Guardrail) -> BlockDifference | None:
        """Return the oriented difference; None if an arm has no session with a value."""
        slices = self.find_slices(guardrail) if guardrail.by_slice else set()
        names = slices or {guardrail.metric}
        differences = [
            pair for name in sorted(names) if (pair := self._subtract(name, guardrail.scale))
        ]
        weight = math.fsum(weight for weight, _ in differences)
        if not weight:
            return None
        mean = math.fsum(w * difference for w, difference in differences) / weight
        return BlockDifference(guardrail.orient(mean), weight)

    def _subtract(self, metric: str, scale: Scale) -> tuple[float, float] | None:
        """Return the weight of the difference, which is its precision, and the candidate's mean
        minus the control's.
        """
        arms = [arm.get(metric, {}) for arm in (self.control, self.candidate)]
        control, candidate = (average_sessions(sessions, scale) for sessions in arms)
        if control is None or candidate is None:
            return None
        return 1 / math.fsum(1 / len(sessions) for sessions in arms), candidate - control

    def find_slices(self, guardrail: Guardrail) -> set[str]:
        """Return the names of the metric's slices."""
        prefix = guardrail.prefix
        return {name for name in (*self.control, *self.candidate) if name.startswith(prefix)}

    @property
    def sessions(self) -> set[Hashable]:
        arms = chain(self.control.values(), self.candidate.values())
        return {session for values in arms for session in values}


def average_sessions(sessions: SessionValues, scale: Scale) -> float | None:
    """Return the mean of the sessions' means, or of their logarithms; None without values."""
    means = [fmean(values) for values in sessions.values() if values]
    if scale is Scale.RATIO:
        means = [math.log(mean) for mean in means if mean > 0]
    return fmean(means) if means else None


FAILURE_GUARDRAILS = (
    Guardrail("failed", False, 0.02, Scale.DIFFERENCE, 0.01),
    Guardrail("tool_failed", False, 0.05, Scale.DIFFERENCE, 0.01),
)


@dataclass(frozen=True, slots=True)
class CanaryRules:
    """Rules that decide a canary.

    ``primary`` must improve and every guardrail must stay above its margin. A guardrail shown to be
    below its margin causes a rollback, and so does a primary metric shown to be worse. ``alpha``
    bounds the probability of a wrong promotion, and that of a wrong rollback, however often the
    test is evaluated.
    """

    primary: Guardrail = Guardrail("acceptance", higher_is_better=True, margin=0.0, by_slice=True)
    guardrails: tuple[Guardrail, ...] = (
        Guardrail("tpot", higher_is_better=False, margin=0.05),
        Guardrail("fallback", False, 0.05, Scale.DIFFERENCE, 0.005),
        *FAILURE_GUARDRAILS,
    )
    slice_margin: float = 0.03
    """Loss of the primary metric that is tolerated in each slice."""
    alpha: float = 0.05
    min_blocks: int = 6
    min_sessions: int = 20
    max_blocks: int = 200

    @classmethod
    def for_tpot(cls, slice_margin: float = 0.05, **rules: Any) -> CanaryRules:
        """Make rules for a change that must make answers faster.

        Acceptance does not affect the verdict.
        """
        primary = Guardrail("tpot", higher_is_better=False, margin=0.0, by_slice=True)
        return cls(primary, FAILURE_GUARDRAILS, slice_margin, **rules)


@dataclass(frozen=True, slots=True)
class MetricEvidence:
    """Evidence on one metric, oriented so that above 0 the candidate is better."""

    metric: str
    interval: Interval
    margin: float
    better: bool
    worse: bool
    """True if the whole interval is below the margin."""
    tolerable: bool
    """True if the whole interval is above the margin."""


@dataclass(frozen=True, slots=True)
class CanaryFindings:
    """A verdict and its reason."""

    verdict: CanaryVerdict
    reason: str
    ended: bool
    """True if no further block can change the verdict."""
    blocks: int
    sessions: int
    evidence: tuple[MetricEvidence, ...] = field(default_factory=tuple)


class CanaryTest:
    """Collects blocks and judges them.

    ``concurrent`` means that the arms of a block serve at the same time instead of in random order.
    """

    def __init__(self, rules: CanaryRules, concurrent: bool = False) -> None:
        self.rules = rules
        self._concurrent = concurrent
        self.blocks = 0
        self._sessions: set[Hashable] = set()
        self._guardrails = {
            guardrail.metric: guardrail for guardrail in (rules.primary, *rules.guardrails)
        }
        self._differences: dict[str, list[BlockDifference]] = {
            name: [] for name in self._guardrails
        }

    def add(self, block: SlotPair) -> None:
        self.blocks += 1
        self._sessions |= block.sessions
        primary = self.rules.primary
        for name in sorted(block.find_slices(primary) - self._guardrails.keys()):
            margin = self.rules.slice_margin
            self._guardrails[name] = Guardrail(name, primary.higher_is_better, margin)
            self._differences[name] = []
        for name, guardrail in self._guardrails.items():
            difference = block.compare(guardrail)
            if difference is not None:
                self._differences[name].append(difference)

    def judge(self) -> CanaryFindings:
        """Return the current verdict. May be called after every block."""
        rules = self.rules
        primary, *other_metrics = [
            self._gather(guardrail) for guardrail in self._guardrails.values()
        ]
        has_enough = self.blocks >= rules.min_blocks and len(self._sessions) >= rules.min_sessions
        is_last = self.blocks >= rules.max_blocks
        verdict, reason = decide(
            primary, other_metrics, "" if has_enough else self._describe_data()
        )
        has_ended = is_last or verdict is not CanaryVerdict.UNDECIDED
        if is_last and verdict is CanaryVerdict.UNDECIDED:
            reason = f"the maximum duration has passed: {reason}"
        evidence = (primary, *other_metrics)
        return CanaryFindings(
            verdict, reason, has_ended, self.blocks, len(self._sessions), evidence
        )

    def _describe_data(self) -> str:
        rules, sessions = self.rules, len(self._sessions)
        return (
            f"too little data: {self.blocks} of {rules.min_blocks} blocks, "
            f"{sessions} of {rules.min_sessions} sessions"
        )

    def _gather(self, guardrail: Guardrail) -> MetricEvidence:
        """Evaluate one metric.

        A promotion needs every metric to hold, so each test may err with probability ``alpha``. One
        metric suffices for a rollback, so the metrics share ``alpha``. Both claims concern one end
        of the interval.
        """
        interval = self._find_interval(guardrail, self.rules.alpha)
        strict_interval = self._find_interval(guardrail, self._share_alpha(guardrail.metric))
        return MetricEvidence(
            guardrail.metric,
            interval,
            guardrail.least,
            better=interval.low > 0,
            worse=strict_interval.high < guardrail.least,
            tolerable=interval.low > guardrail.least,
        )

    def _find_interval(self, guardrail: Guardrail, alpha: float) -> Interval:
        """Return an interval each of whose ends errs with probability ``alpha``."""
        differences = self._differences[guardrail.metric]
        joint_alpha = min(1.0, 2 * alpha)
        return find_interval(differences, joint_alpha, guardrail.floor, dependent=self._concurrent)

    def _share_alpha(self, metric: str) -> float:
        """Return the metric's share of alpha.

        The metrics of the rules share one half. The n-th slice to appear gets 1 / (n (n + 1)) of
        the other half, so the sum stays below alpha however many slices follow.
        """
        num_metrics = 1 + len(self.rules.guardrails)
        place = list(self._guardrails).index(metric) + 1
        parts = (
            num_metrics
            if place <= num_metrics
            else (place - num_metrics) * (place - num_metrics + 1)
        )
        return self.rules.alpha / 2 / parts


def decide(
    primary: MetricEvidence, other_metrics: Sequence[MetricEvidence], missing_data: str
) -> tuple[CanaryVerdict, str]:
    """Return the verdict and its reason; ``missing_data`` describes missing data, if any."""
    for metric in (primary, *other_metrics):
        if metric.worse:
            return CanaryVerdict.ROLL_BACK, f"{metric.metric} is worse than its margin"
    if missing_data:
        return CanaryVerdict.UNDECIDED, missing_data
    if not primary.better:
        return CanaryVerdict.UNDECIDED, f"{primary.metric} is not shown to be better"
    doubtful_metrics = [
        metric.metric for metric in other_metrics if metric.interval.blocks and not metric.tolerable
    ]
    if doubtful_metrics:
        return CanaryVerdict.UNDECIDED, f"{doubtful_metrics[0]} may be worse than its margin"
    return CanaryVerdict.PROMOTE, f"{primary.metric} is better and nothing else is worse"
