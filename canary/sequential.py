"""A sequential test of a change, which may be looked at after every block of traffic.

Time is cut into *slots* in which all traffic meets one arm: the control or the candidate. Two slots
in random order make a *block*. What a block tells of a metric is one number: the difference of the
arms' means over sessions (of logarithms, for ratios). Sessions within a slot are alike and share
its load, so blocks are the independent units, never requests or steps. Where arms are drawn by
session both serve at the same time, and a block is a span of time with the sessions that begin in
it: a session that counted in two blocks would make them depend on each other.

A block weighs as much as its sessions make it precise: the difference of means of n and m sessions
has a variance in proportion to 1/n + 1/m. A quiet hour cannot drown a busy one.

The mean of the blocks' differences has a confidence *sequence*: intervals that hold the true value
at all times at once with probability 1 - alpha, so that stopping at the first clear answer is
sound. It is the anytime-valid t interval: the e-process of the t test with a normal mixture over
the effect size and the right Haar prior over the scale (Lai 1976; Perez-Ortiz et al. 2022), exact
for normal differences of unknown variance in proportion to 1 / weight. Differences are clipped and
their variance has a floor, so that neither an outlier nor a run of equal blocks decides.

What drifts through the blocks makes neighbours alike. In slots the random order of each pair gives
the drift a random sign, so the differences stay uncorrelated. Arms that serve at the same time have
no such sign: one may be slower for minutes, as a worker on a shared host. Their blocks then count
for fewer (``measure_dependence``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

SPREAD = 1.0
"""Variance of the mixture over effect sizes in standard deviations of a block."""
STRONGEST = 0.95
"""The largest correlation of neighbouring blocks that is reckoned with."""


class CanaryVerdict(StrEnum):
    """Verdict of a canary's evidence."""

    PROMOTE = "promote"
    ROLL_BACK = "roll back"
    UNDECIDED = "not enough data"


class Scale(StrEnum):
    """Scale on which a metric's arms are compared."""

    RATIO = "ratio"
    """Candidate over control, from means of logarithms; values must be positive."""
    DIFFERENCE = "difference"
    """Candidate minus control: for shares."""


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A metric that must not become worse than ``margin``.

    A ratio's margin is relative: 0.02 is two per cent. ``floor`` is the least standard deviation of
    a block's difference that is believed.
    """

    metric: str
    higher_is_better: bool
    margin: float
    scale: Scale = Scale.RATIO
    floor: float = 0.005
    clip: float = 1.0
    by_slice: bool = False
    """Compared within each slice, and the differences averaged: what the traffic is made of changes
    from slot to slot, and acceptance differs more between workloads than between drafts."""

    @property
    def prefix(self) -> str:
        """Prefix of the names of the metric's slices, as in ``acceptance:tools``."""
        return f"{self.metric}:"

    def orient(self, difference: float) -> float:
        """The difference so that higher is better."""
        bounded = max(-self.clip, min(self.clip, difference))
        return bounded if self.higher_is_better else -bounded

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
    """1 / variance, but for a factor that all blocks share."""


def find_interval(
    found: Sequence[BlockDifference],
    alpha: float,
    floor: float = 0.0,
    spread: float = SPREAD,
    dependent: bool = False,
) -> Interval:
    """The interval after these blocks; it is without ends while there are too few.

    The t test of a line through the origin: sqrt(weight) * value on sqrt(weight). Weights are in
    units of the first block's, which is known before anything is tested. ``floor`` is the least
    standard deviation of a block of mean weight. ``dependent`` blocks may be like their neighbours.
    """
    count = len(found)
    if count < 2:
        return Interval(found[0].value if found else 0.0, -math.inf, math.inf, count)
    weights = [one.weight / found[0].weight for one in found]
    total = math.fsum(weights)
    mean = math.fsum(w * one.value for w, one in zip(weights, found, strict=True)) / total
    rest = [math.sqrt(w) * (one.value - mean) for w, one in zip(weights, found, strict=True)]
    each = measure_dependence(rest) if dependent else 1.0
    independent, known = count / each, total / each
    scale = 1 + known * spread
    growth = (math.sqrt(scale) / alpha) ** (2 / independent)
    if growth >= scale or independent <= 1:
        return Interval(mean, -math.inf, math.inf, count)
    squared_t = (independent - 1) * (growth - 1) / (1 - growth / scale)
    squares = math.fsum(one * one for one in rest)
    deviation = max(math.sqrt(squares / (count - 1)), floor * math.sqrt(total / count))
    reach = deviation * math.sqrt(squared_t / known)
    return Interval(mean, mean - reach, mean + reach, count)


def measure_dependence(rest: Sequence[float]) -> float:
    """Estimate the number of blocks that are worth one independent block; ``rest`` are residuals.

    The formula is that of an autoregression of first order, (1 + r) / (1 - r). In few blocks the
    correlation r of neighbours is seen too small on average (Kendall 1954) and is uncertain, so
    both errors are added to it.
    """
    count, squares = len(rest), math.fsum(one * one for one in rest)
    if not squares:
        return 1.0
    seen = math.fsum(one * two for one, two in pairwise(rest)) / squares
    correlation = seen + (1 + 4 * max(seen, 0.0)) / count + 1 / math.sqrt(count)
    bounded = min(max(correlation, 0.0), STRONGEST)
    return (1 + bounded) / (1 - bounded)


SessionValues = Mapping[Hashable, Sequence[float]]
"""The values of one metric in one slot, by session."""


@dataclass(frozen=True, slots=True)
class SlotPair:
    """One slot of each arm: the values of every metric by session."""

    control: Mapping[str, SessionValues]
    candidate: Mapping[str, SessionValues]

    def compare(self, guardrail: Guardrail) -> BlockDifference | None:
        """The oriented difference; None where an arm has no session with a value."""
        slices = self.find_slices(guardrail) if guardrail.by_slice else set()
        names = slices or {guardrail.metric}
        found = [one for name in sorted(names) if (one := self._subtract(name, guardrail.scale))]
        weight = math.fsum(weight for weight, _ in found)
        if not weight:
            return None
        mean = math.fsum(w * difference for w, difference in found) / weight
        return BlockDifference(guardrail.orient(mean), weight)

    def _subtract(self, metric: str, scale: Scale) -> tuple[float, float] | None:
        """The candidate's mean minus the control's, after its weight: the precision it has."""
        arms = [arm.get(metric, {}) for arm in (self.control, self.candidate)]
        control, candidate = (average_sessions(sessions, scale) for sessions in arms)
        if control is None or candidate is None:
            return None
        return 1 / math.fsum(1 / len(sessions) for sessions in arms), candidate - control

    def find_slices(self, guardrail: Guardrail) -> set[str]:
        """The metrics of its slices."""
        prefix = guardrail.prefix
        return {name for name in (*self.control, *self.candidate) if name.startswith(prefix)}

    @property
    def sessions(self) -> set[Hashable]:
        arms = chain(self.control.values(), self.candidate.values())
        return {session for values in arms for session in values}


def average_sessions(sessions: SessionValues, scale: Scale) -> float | None:
    """The mean over sessions of each session's mean, or of its logarithm."""
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
    """Rules by which a canary is decided.

    ``primary`` must become better; every guardrail must stay above its margin. A guardrail that is
    shown to be below its margin rolls back, and so does a primary that is shown to be worse.
    ``alpha`` bounds the chance of a wrong promotion, and that of a wrong rollback, however often
    one looks.
    """

    primary: Guardrail = Guardrail("acceptance", higher_is_better=True, margin=0.0, by_slice=True)
    guardrails: tuple[Guardrail, ...] = (
        Guardrail("tpot", higher_is_better=False, margin=0.05),
        Guardrail("fallback", False, 0.05, Scale.DIFFERENCE, 0.005),
        *FAILURE_GUARDRAILS,
    )
    slice_margin: float = 0.03
    """Loss of the primary metric that is tolerated in any slice."""
    alpha: float = 0.05
    min_blocks: int = 6
    min_sessions: int = 20
    max_blocks: int = 200

    @classmethod
    def for_tpot(cls, slice_margin: float = 0.05, **rules: Any) -> CanaryRules:
        """Make rules for a change that must make answers faster. Acceptance does not affect the
        verdict.
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
    """The whole interval lies below the margin."""
    tolerable: bool
    """The whole interval lies above the margin."""


@dataclass(frozen=True, slots=True)
class CanaryFindings:
    """A verdict and why."""

    verdict: CanaryVerdict
    reason: str
    ended: bool
    """No further block can change it."""
    blocks: int
    sessions: int
    evidence: tuple[MetricEvidence, ...] = field(default_factory=tuple)


class CanaryTest:
    """Collects blocks and judges them.

    ``concurrent``: the arms of a block served at the same time, not in turn in random order.
    """

    def __init__(self, rules: CanaryRules, concurrent: bool = False) -> None:
        self.rules = rules
        self._concurrent = concurrent
        self.blocks = 0
        self._sessions: set[Hashable] = set()
        self._guardrails = {one.metric: one for one in (rules.primary, *rules.guardrails)}
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
        """The verdict so far; it may be asked for after every block."""
        rules = self.rules
        primary, *others = [self._gather(one) for one in self._guardrails.values()]
        enough = self.blocks >= rules.min_blocks and len(self._sessions) >= rules.min_sessions
        last = self.blocks >= rules.max_blocks
        verdict, reason = decide(primary, others, "" if enough else self._describe_data())
        ended = last or verdict is not CanaryVerdict.UNDECIDED
        if last and verdict is CanaryVerdict.UNDECIDED:
            reason = f"the longest duration is over: {reason}"
        evidence = (primary, *others)
        return CanaryFindings(verdict, reason, ended, self.blocks, len(self._sessions), evidence)

    def _describe_data(self) -> str:
        rules, sessions = self.rules, len(self._sessions)
        return (
            f"too little data: {self.blocks} of {rules.min_blocks} blocks, "
            f"{sessions} of {rules.min_sessions} sessions"
        )

    def _gather(self, guardrail: Guardrail) -> MetricEvidence:
        """A promotion needs every metric to hold, so each may err with ``alpha``; one is enough
        for a rollback, so they share it. Both claims are about one end of the interval."""
        holds = self._find_interval(guardrail, self.rules.alpha)
        strict = self._find_interval(guardrail, self._share_alpha(guardrail.metric))
        return MetricEvidence(
            guardrail.metric,
            holds,
            guardrail.least,
            better=holds.low > 0,
            worse=strict.high < guardrail.least,
            tolerable=holds.low > guardrail.least,
        )

    def _find_interval(self, guardrail: Guardrail, alpha: float) -> Interval:
        """Each of its ends errs with ``alpha``."""
        found = self._differences[guardrail.metric]
        both = min(1.0, 2 * alpha)
        return find_interval(found, both, guardrail.floor, dependent=self._concurrent)

    def _share_alpha(self, metric: str) -> float:
        """Half of it for the metrics of the rules. A slice that appears as the n-th takes 1 in
        n (n + 1) of the other half: however many follow, all shares together stay below alpha."""
        known = 1 + len(self.rules.guardrails)
        place = list(self._guardrails).index(metric) + 1
        parts = known if place <= known else (place - known) * (place - known + 1)
        return self.rules.alpha / 2 / parts


def decide(
    primary: MetricEvidence, others: Sequence[MetricEvidence], lacking: str
) -> tuple[CanaryVerdict, str]:
    """The verdict and why; ``lacking`` says which data is still waited for, if any."""
    for one in (primary, *others):
        if one.worse:
            return CanaryVerdict.ROLL_BACK, f"{one.metric} is worse than its margin"
    if lacking:
        return CanaryVerdict.UNDECIDED, lacking
    if not primary.better:
        return CanaryVerdict.UNDECIDED, f"{primary.metric} is not shown to be better"
    open_ = [one.metric for one in others if one.interval.blocks and not one.tolerable]
    if open_:
        return CanaryVerdict.UNDECIDED, f"{open_[0]} may be worse than its margin"
    return CanaryVerdict.PROMOTE, f"{primary.metric} is better and nothing else is worse"
