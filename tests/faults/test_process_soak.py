"""Growth over a soak: its slope, its interval, and the counts that make a soak fail."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.faults import process_soak as soak

GROWTH = 60.0
"""Per hour."""


def make_points(chance: random.Random, alike: float, per_hour: float) -> list[soak.Point]:
    """Half an hour, minute by minute; the errors of neighbours correlate by ``alike``."""
    error, points = 0.0, []
    for at in range(30):
        error = alike * error + chance.gauss(0, 1)
        points.append((60.0 * at, 500 + per_hour * at / 60 + error))
    return points


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_an_interval_holds_the_growth_about_as_often_as_it_claims(alike: float) -> None:
    chance = random.Random(3)
    slopes = [soak.fit_slope(make_points(chance, alike, GROWTH)) for _ in range(300)]
    assert sum(one.low <= GROWTH <= one.high for one in slopes) > 0.85 * len(slopes)
    assert all(one.low <= one.value <= one.high for one in slopes)


def test_growth_is_told_from_noise() -> None:
    assert soak.fit_slope(make_points(random.Random(1), 0.0, GROWTH)).low > 0
    assert soak.fit_slope([(float(at), 7.0) for at in range(30)]) == soak.Slope(0, 0, 0)
    jump = [(60.0 * at, 500.0 + 40 * (at > 20) + at % 2) for at in range(30)]
    assert soak.fit_slope(jump).low <= 0, "one jump is no growth"


def test_blocks_average_what_is_between_them() -> None:
    points = [(float(at), float(at % 2)) for at in range(90)]
    blocks = soak.average_blocks(points, 9)
    assert blocks[0] == (4.5, 0.5)
    assert len(blocks) == 9
    assert soak.average_blocks(points[:5], 9) == points[:5]


def test_a_process_is_watched_and_a_new_one_begins_anew() -> None:
    watch = soak.Watch()
    watch.look(os.getpid(), 0.0)
    watch.look(os.getpid(), 1.0)
    assert (len(watch.at), len(watch.pids)) == (1, 1)
    assert watch.memory_mib[0] > 5
    assert watch.threads[0] >= 1
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        watch.look(other.pid, 2.0)
        assert (len(watch.at), len(watch.pids)) == (1, 2), "no CPU of two processes in one sample"
        other.kill()
    assert watch.describe("memory_mib")["most"] == round(watch.memory_mib[0], 1)


CLEAN = {
    "errors": {},
    "requests_left_inside": 0,
    "engine_restarts": 0,
    "audits": {'{outcome="lossless"}': 40.0},
    "unexplained": {"balance": 0.0, "clients": 0.0, soak.BEYOND + "drafts": 49.0},
}


@pytest.mark.parametrize(
    "change",
    [
        {"errors": {"whole: ReadError": 1}},
        {"requests_left_inside": 1},
        {"engine_restarts": 1},
        {"audits": {'{outcome="violated"}': 1.0}},
        {"unexplained": {"balance": 0.0, "clients": -3.0}},
        {"unexplained": {"balance": 0.0, soak.BEYOND + "drafts": -1.0}},
    ],
)
def test_a_soak_fails_for_each_fault(change: dict) -> None:
    assert soak.find_faults({"one": CLEAN}) == []
    assert len(soak.find_faults({"one": CLEAN, "two": CLEAN | change})) == 1
