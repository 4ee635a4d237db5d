"""Half a minute of service by scripted tokens; what grows then, grows for ever."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.conftest import ADMIN, serving
from tests.faults import soak
from tests.workers import GATEWAY, scripted_worker

MINUTES = 0.5
MOST_MIB, MOST_KIB_PER_ANSWER = 2.0, 6.0
"""Growth of the gateway in the second half of that time."""
MOST_FILES_PER_MINUTE = 2.0
MOST_TASKS_PER_MINUTE = 2.0


def test_a_slope_is_found_under_noise_and_jumps():
    points = [(at / 30, 100 + 4 * at / 30 + (at % 7) + 50 * (at == 40)) for at in range(75)]
    assert abs(soak.slope(points) - 4) < 1
    flat = [(at / 30, 100 + (at % 7) + 20 * (at > 70)) for at in range(75)]
    assert abs(soak.slope(flat)) < 1


@pytest.mark.slow
def test_nothing_grows_while_it_serves(tmp_path):
    store = f"--responses-store=sqlite:///{tmp_path}/responses.sqlite"
    with scripted_worker(tmp_path / "worker.log") as worker:
        worker.until_healthy()
        line = (*GATEWAY, *ADMIN, store, "--upstream", worker.url)
        with serving(tmp_path / "serve.log", line) as gateway:
            found = asyncio.run(soak.soak(gateway, MINUTES))
    print(found, file=sys.stderr)
    assert len(found.answers) == 5, "every kind of client was there"
    assert found.inside_afterwards == 0
    assert found.tasks_left <= 2
    assert found.files_left <= 8
    answers = sum(found.answers.values()) / 2
    grown_mib = found.per_minute["memory"] * MINUTES / 2
    assert grown_mib < MOST_MIB + MOST_KIB_PER_ANSWER * answers / 1024
    assert found.per_minute["files"] < MOST_FILES_PER_MINUTE
    assert found.per_minute["tasks"] < MOST_TASKS_PER_MINUTE
