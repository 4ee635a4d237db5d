from __future__ import annotations

import pytest

from eaglegate.engine.totals import Totals
from eaglegate.observability.windows import SlidingWindow, WindowSums


def sums(steps: int, accepted: int) -> WindowSums:
    return WindowSums(1, steps, float(steps), Totals(verify_steps=steps, accepted=accepted))


def test_the_window_forgets_and_the_baseline_remembers():
    window = SlidingWindow(span_s=300, half_life_s=3600)
    window.add(sums(100, 200), now=1000)
    assert window.sums(now=1000).totals.acceptance_length == 3
    assert window.baseline(now=1000) is None
    window.add(sums(100, 50), now=1400)
    assert window.sums(now=1400).totals.acceptance_length == 1.5
    assert window.baseline(now=1400) == 3


def test_the_baseline_weighs_the_recent_past_more():
    window = SlidingWindow(span_s=300, half_life_s=600)
    window.add(sums(100, 200), now=0)
    window.add(sums(100, 0), now=600)
    want = 1 + (200 * 0.5) / (100 * 0.5 + 100)
    assert window.baseline(now=2000) == pytest.approx(want)


def test_history_tells_how_long_ago():
    window = SlidingWindow(span_s=300, half_life_s=600)
    window.add(sums(1, 1), now=1000)
    window.add(sums(1, 1), now=1025)
    assert [age for age, _ in window.history(now=1030)] == [30, 10]
