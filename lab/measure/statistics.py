"""Estimates with intervals: cluster bootstrap, paired log-ratios, verdicts.

Requests of one session are similar, so the unit of resampling is the *cluster* (a session), never
the request or the step. Without clusters, every observation is a cluster. Intervals are expanded
percentile intervals (Hesterberg 2015): percentiles of the bootstrap, widened as in the t
distribution for this number of clusters, because plain percentiles are too narrow for few.

Times are different: other load on the machine lasts longer than a session and affects all of them.
They are compared by windows in which the settings ran in random order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Function from sums, with a row per resample and a column per quantity, to a value per row."""

LEVEL = 0.95
ROUNDS = 2000
LEAST_CLUSTERS = 5
"""Smallest number of clusters for an interval. With fewer there is too little to resample."""
EXACT = 12
"""Largest number of windows whose subsets are all tried. Otherwise as many subsets are sampled."""
_CHUNK = 1_000_000
"""Number of weights in memory while resampling."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Value with its interval; ``low`` and ``high`` are None with too few clusters."""

    value: float
    low: float | None
    high: float | None
    level: float
    observations: int
    clusters: int

    def transform(self, function: Callable[[float], float]) -> Estimate:
        """Return the estimate of an increasing function of the quantity, such as ``math.exp``."""
        bounds = [None if end is None else function(end) for end in (self.low, self.high)]
        return Estimate(
            function(self.value), bounds[0], bounds[1], self.level, self.observations, self.clusters
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Distribution as in `vllm bench serve`: interpolated percentiles, population ``std``."""

    count: int
    mean: float
    median: float
    std: float
    p90: float
    p95: float
    p99: float


def summarise(values: Iterable[float]) -> Summary | None:
    """Summarise values; None without values."""
    data = np.asarray(list(values), dtype=np.float64)
    if not data.size:
        return None
    p50, p90, p95, p99 = (float(p) for p in np.percentile(data, (50, 90, 95, 99)))
    return Summary(int(data.size), float(data.mean()), p50, float(data.std()), p90, p95, p99)


def bootstrap(
    columns: Sequence[Sequence[float]],
    statistic: Statistic,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = LEVEL,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Estimate | None:
    """Estimate a function of sums over observations by resampling whole clusters.

    ``columns`` has one sequence per quantity, all of the same length. Returns None if the statistic
    has no value on the data itself (a ratio without a denominator).
    """
    data = np.asarray(columns, dtype=np.float64).T
    if data.size == 0:
        return None
    sums = _sum_clusters(data, clusters)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(sums.sum(axis=0, keepdims=True))[0])
        if not math.isfinite(value):
            return None
        low, high = None, None
        if len(sums) >= LEAST_CLUSTERS:
            values = statistic(_resample(sums, rounds, seed))
            low, high = _expanded_percentiles(values, len(sums), level)
    return Estimate(value, low, high, level, len(data), len(sums))


def bootstrap_mean(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, **options: Any
) -> Estimate | None:
    return bootstrap_ratio(values, [1.0] * len(values), clusters, **options)


def bootstrap_ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    **options: Any,
) -> Estimate | None:
    """Estimate a ratio of sums, such as accepted tokens over verify steps of many requests."""
    columns = [numerators, denominators]
    return bootstrap(columns, lambda sums: sums[:, 0] / sums[:, 1], clusters, **options)


def estimate_product(
    columns: Sequence[Sequence[float]], powers: Sequence[int], *, level: float = LEVEL
) -> Estimate | None:
    """Estimate a product of powers of sums over blocks.

    Powers (1, -1) make a ratio of sums, (1, -1, -1, 1) a ratio of two ratios, paired by block. The
    interval is Student's on the logarithm, linearised in the sums (Cochran, Sampling Techniques,
    1977, chapter 6), because a bootstrap of few blocks cannot reach beyond them. Returns None if a
    sum is not positive.
    """
    data = np.asarray(columns, dtype=np.float64)
    exponents = np.asarray(powers, dtype=np.float64)
    if data.size == 0 or (data.sum(axis=1) <= 0).any():
        return None
    means, blocks = data.mean(axis=1), data.shape[1]
    value = float(np.prod((means * blocks) ** exponents))
    if blocks < LEAST_CLUSTERS:
        return Estimate(value, None, None, level, blocks, blocks)
    influence = exponents @ (data / means[:, None])
    error = float(influence.std(ddof=1)) / math.sqrt(blocks)
    factor = math.exp(t_quantile((1 + level) / 2, blocks - 1) * error)
    return Estimate(value, value / factor, value * factor, level, blocks, blocks)


def paired_ratio(
    base: Sequence[float],
    other: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    **options: Any,
) -> Estimate | None:
    """Estimate the geometric mean of ``other / base`` over pairs, from their mean log-ratio."""
    logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
    estimate = bootstrap_mean(logs, clusters, **options)
    return None if estimate is None else estimate.transform(math.exp)


def paired_ratio_by_window(
    base: Sequence[float],
    other: Sequence[float],
    windows: Sequence[Hashable],
    *,
    level: float = LEVEL,
    seed: int = 0,
) -> Estimate | None:
    """Estimate the ratio over windows in which both settings ran in random order.

    Each window counts once, with its mean log-ratio. The random order gives any effect that favours
    the first or second of a window (drift, a warm cache, another process) a random sign. The
    interval therefore keeps its level however long such noise lasts: its ends are typical values,
    the means over subsets of the windows (Hartigan 1969).
    """
    groups: dict[Hashable, list[float]] = {}
    for base_value, other_value, window in zip(base, other, windows, strict=True):
        groups.setdefault(window, []).append(math.log(other_value / base_value))
    if not groups:
        return None
    means = np.array([sum(group) / len(group) for group in groups.values()])
    low, high = _find_typical_values(means, level, seed)
    estimate = Estimate(float(means.mean()), low, high, level, len(base), len(means))
    return estimate.transform(math.exp)


def count_needed_windows(level: float) -> int:
    """Return the smallest number of windows whose subsets give an interval of ``level``."""
    return math.ceil(math.log2(2 / (1 - level)))


def _find_typical_values(
    means: Array, level: float, seed: int
) -> tuple[float, float] | tuple[None, None]:
    count = len(means)
    if count < count_needed_windows(level):
        return None, None
    if count <= EXACT:
        subsets = np.arange(1, 1 << count)[:, None] >> np.arange(count) & 1
    else:
        subsets = np.random.default_rng(seed).integers(0, 2, (1 << EXACT, count))
        subsets = subsets[subsets.any(axis=1)]
    typical = np.sort(subsets @ means / subsets.sum(axis=1))
    num_outside = max(1, int((len(typical) + 1) * (1 - level) / 2))
    return float(typical[num_outside - 1]), float(typical[-num_outside])


def paired_difference(
    base: Sequence[float],
    other: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    **options: Any,
) -> Estimate | None:
    """Estimate the mean of ``other - base`` over pairs, for outcomes that are 0 or 1."""
    return bootstrap_mean([b - a for a, b in zip(base, other, strict=True)], clusters, **options)


class Verdict(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    """The whole interval is within the margin."""
    UNKNOWN = "not enough data"
    """The interval contains both no difference and a difference that would matter."""
    NO_DRAFTS = "no drafts"
    """One of the two drafted nothing, so there is no drafting to compare."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Verdict on an estimate, with its reason."""

    verdict: Verdict
    reason: str


def judge_ratio(
    ratio: Estimate | None,
    *,
    lower_is_better: bool,
    margin: float = 0.02,
    unit: str = "sessions",
    needed: int = LEAST_CLUSTERS,
    neutral: float = 1.0,
    missing: str = "no pair has this figure on both sides",
    subject: str = "",
) -> Finding:
    """Judge a ratio of two settings against 1, or a difference against a ``neutral`` of 0.

    ``margin`` is the relative difference that matters, ``unit`` names the clusters, and ``needed``
    is the number of clusters that an interval takes. Better or worse: the interval excludes the
    neutral value. No difference: the interval is within the margin. ``missing`` is the reason
    without an estimate, ``subject`` that of which a difference is a share.
    """
    if ratio is None:
        return Finding(Verdict.UNKNOWN, missing)
    if ratio.low is None or ratio.high is None:
        reason = f"{ratio.clusters} {unit}; an interval needs {needed} or more"
        return Finding(Verdict.UNKNOWN, reason)
    low, high = ratio.low - neutral, ratio.high - neutral
    span = f"{ratio.level:.0%} interval {low:+.1%} to {high:+.1%}{subject}"
    if -margin < low <= high < margin:
        return Finding(Verdict.SAME, f"{span} lies within ±{margin:.0%}")
    if low > 0 or high < 0:
        is_better = (ratio.value < neutral) == lower_is_better
        return Finding(Verdict.BETTER if is_better else Verdict.WORSE, f"{span} excludes 0")
    return Finding(Verdict.UNKNOWN, f"{span} holds 0 and reaches beyond ±{margin:.0%}")


def share_level(tests: int, level: float = LEVEL) -> float:
    """Return the level of each of several intervals that hold simultaneously (Bonferroni)."""
    return 1 - (1 - level) / max(1, tests)


def t_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t by Cornish-Fisher expansion.

    The error is below 1 % from 4 degrees of freedom on, at the levels used here.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def _sum_clusters(data: Array, clusters: Sequence[Hashable] | None) -> Array:
    if clusters is None:
        return data
    numbers: dict[Hashable, int] = {}
    pairs = zip(clusters, data, strict=True)
    rows = np.array([numbers.setdefault(cluster, len(numbers)) for cluster, _ in pairs])
    sums = np.zeros((len(numbers), data.shape[1]))
    np.add.at(sums, rows, data)
    return sums


def _resample(sums: Array, rounds: int, seed: int) -> Array:
    """Return sums over clusters drawn with replacement, ``rounds`` times."""
    count = len(sums)
    generator = np.random.default_rng(seed)
    probabilities = np.full(count, 1 / count)
    size = max(1, _CHUNK // count)
    chunks = [
        generator.multinomial(count, probabilities, min(size, rounds - num_done)) @ sums
        for num_done in range(0, rounds, size)
    ]
    return np.concatenate(chunks)


def _expanded_percentiles(
    resampled: Array, clusters: int, level: float
) -> tuple[float, float] | tuple[None, None]:
    values = resampled[np.isfinite(resampled)]
    if not values.size:
        return None, None
    spread = math.sqrt(clusters / (clusters - 1))
    reach = spread * t_quantile((1 + level) / 2, clusters - 1)
    tail = NormalDist().cdf(-reach) * 100
    low, high = np.percentile(values, (tail, 100 - tail))
    return float(low), float(high)
