"""Intervals hold what they promise, by simulation with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eaglegate.lab.measure.statistics import (
    Verdict,
    bootstrap_mean,
    count_needed_windows,
    estimate_product,
    judge_ratio,
    paired_ratio,
    paired_ratio_by_window,
    t_quantile,
)

pytestmark = pytest.mark.thorough


def coverage(draw, truth, trials=300, **options):
    """Share of intervals that hold the truth."""
    hits = 0
    for trial in range(trials):
        found = draw(np.random.default_rng(trial), options | {"seed": trial, "rounds": 400})
        hits += found.low <= truth <= found.high
    return hits / trials


@pytest.mark.parametrize("size", [6, 12, 60])
def test_the_interval_of_a_mean_holds_it_as_often_as_it_says(size):
    share = coverage(lambda rng, o: bootstrap_mean(list(rng.normal(3, 1, size)), **o), 3)
    assert 0.91 <= share <= 0.985


@pytest.mark.parametrize("repeats", [5, 8, 20])
def test_the_ratio_of_two_pooled_ratios_keeps_its_promise(repeats):
    """Blocks of unlike sizes, on a machine whose speed changes between repeats."""

    def draw(rng, _):
        speed = rng.lognormal(0, 0.3, repeats)
        tokens = rng.uniform(50, 150, repeats)
        seconds = tokens / speed
        base = seconds * rng.lognormal(0, 0.1, repeats)
        other = seconds / 1.4 * rng.lognormal(0, 0.1, repeats)
        return estimate_product([tokens, other, tokens, base], (1, -1, -1, 1))

    assert 0.92 <= coverage(draw, 1.4) <= 0.985


def test_a_product_of_sums():
    found = estimate_product([[3.0, 5.0], [1.0, 1.0]], (1, -1))
    assert (found.value, found.low, found.high) == (4.0, None, None)
    assert estimate_product([[0.0, 0.0], [1.0, 1.0]], (1, -1)) is None
    assert estimate_product([], (1, -1)) is None
    same = estimate_product([[2.0] * 5, [1.0] * 5], (1, -1))
    assert (same.low, same.value, same.high) == (2.0, 2.0, 2.0)


def draw_sessions(rng, sessions=15, turns=8):
    """Turns of a session share most of their noise."""
    shared = np.repeat(rng.normal(0, 1, sessions), turns)
    values = 3 + shared + rng.normal(0, 0.2, sessions * turns)
    return list(values), list(np.repeat(np.arange(sessions), turns))


def test_clusters_keep_the_promise_that_single_observations_break():
    def clustered(rng, options):
        return bootstrap_mean(*draw_sessions(rng), **options)

    def naive(rng, options):
        return bootstrap_mean(draw_sessions(rng)[0], **options)

    assert 0.90 <= coverage(clustered, 3) <= 0.985
    assert coverage(naive, 3) < 0.75


def test_few_clusters_give_a_value_and_no_interval():
    found = bootstrap_mean([1, 2, 3, 4, 5, 6], ["a", "a", "a", "b", "b", "b"])
    assert (found.value, found.low, found.high, found.clusters) == (3.5, None, None, 2)


def verdict_of(ratios, lower_is_better=True, **options):
    ones = [1.0] * len(ratios)
    estimate = paired_ratio(ones, ratios)
    return judge_ratio(estimate, lower_is_better=lower_is_better, **options).verdict


def test_verdicts():
    assert verdict_of([1.10, 1.12, 1.08, 1.11, 1.09, 1.10]) is Verdict.WORSE
    assert verdict_of([1.10, 1.12, 1.08, 1.11, 1.09], lower_is_better=False) is Verdict.BETTER
    assert verdict_of([1.001, 0.999, 1.002, 0.998, 1.0, 1.0]) is Verdict.SAME
    assert verdict_of([1.3, 0.7, 1.2, 0.8, 1.1, 0.95]) is Verdict.UNKNOWN
    assert verdict_of([1.3, 1.3]) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("degrees", "probability", "value"),
    [(4, 0.975, 2.776), (9, 0.975, 2.262), (9, 0.995, 3.250), (30, 0.975, 2.042)],
)
def test_t_quantiles_are_those_of_the_tables(degrees, probability, value):
    assert t_quantile(probability, degrees) == pytest.approx(value, rel=0.01)


def drifting(rng: np.random.Generator, windows: int, effect: float) -> tuple[list[float], ...]:
    """Log times of two settings in windows of a machine whose noise lasts for many of them and
    that favours whatever comes second."""
    noise = 0.3 * np.sin(np.arange(2 * windows) / rng.uniform(1, 9) + rng.uniform(0, 6))
    noise += np.cumsum(rng.normal(0, 0.05, 2 * windows)) + np.tile([0.1, 0.0], windows)
    base, other = [], []
    for window in range(windows):
        first, second = noise[2 * window : 2 * window + 2]
        swapped = rng.random() < 0.5
        base.append(math.exp(second if swapped else first))
        other.append(math.exp((first if swapped else second) + effect))
    return base, other


@pytest.mark.parametrize("windows", [9, 16, 40])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_noise_that_lasts_fools_no_comparison_of_windows_in_a_drawn_order(windows, level):
    rng, rounds, wrong = np.random.default_rng(7), 600, 0
    for _ in range(rounds):
        base, other = drifting(rng, windows, 0.0)
        found = paired_ratio_by_window(base, other, range(windows), level=level)
        wrong += not found.low <= 1.0 <= found.high
    allowed = rounds * (1 - level)
    assert wrong <= allowed + 3 * math.sqrt(allowed)


def test_too_few_windows_give_a_value_and_no_interval():
    assert [count_needed_windows(level) for level in (0.9, 0.95, 0.99)] == [5, 6, 8]
    found = paired_ratio_by_window([1.0] * 7, [2.0] * 7, range(7), level=0.99)
    assert (found.value, found.low) == (pytest.approx(2.0), None)
    assert paired_ratio_by_window([1.0] * 8, [2.0] * 8, range(8), level=0.99).low > 1.9


def test_a_window_counts_once_however_many_pairs_it_has():
    found = paired_ratio_by_window([1.0] * 4, [4.0, 4.0, 4.0, 1.0], [0, 0, 0, 1])
    assert found.value == pytest.approx(2.0)
    assert (found.observations, found.clusters) == (4, 2)
