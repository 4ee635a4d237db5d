"""Three minutes of service on one core; what grows then, grows for ever."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.conftest import ADMIN, serving
from tests.faults import soak

MINUTES = 3
MOST_MIB_PER_MINUTE = 3.0
MOST_ENGINE_MIB_PER_MINUTE = 12.0
"""vLLM on a CPU keeps a oneDNN primitive for every number of tokens that a batch has had, up to a
bound (docs/faults.md, "The engine's memory"); 2.2 was measured."""
MOST_FILES_PER_MINUTE = 1.0
MOST_TASKS_PER_MINUTE = 1.0


def test_a_slope_is_found_under_noise_and_jumps():
    points = [(at / 30, 100 + 4 * at / 30 + (at % 7) + 50 * (at == 40)) for at in range(75)]
    assert abs(soak.slope(points) - 4) < 1
    flat = [(at / 30, 100 + (at % 7) + 20 * (at > 70)) for at in range(75)]
    assert abs(soak.slope(flat)) < 1


@pytest.fixture
def one_core():
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
def test_nothing_grows_while_it_serves(tmp_path):
    store = ("--responses-store", f"sqlite:///{tmp_path}/responses.sqlite")
    with serving(tmp_path / "serve.log", (*ADMIN, *store)) as gateway:
        found = asyncio.run(soak.soak(gateway, MINUTES))
    print(found, file=sys.stderr)
    assert len(found.answers) == 5, "every kind of client was there"
    assert found.inside_afterwards == 0
    assert found.tasks_left <= 2
    assert found.files_left <= 8
    assert found.per_minute["memory"] < MOST_MIB_PER_MINUTE
    assert found.per_minute["engine_memory"] < MOST_ENGINE_MIB_PER_MINUTE
    assert found.per_minute["files"] < MOST_FILES_PER_MINUTE
    assert found.per_minute["tasks"] < MOST_TASKS_PER_MINUTE
