"""Engines that die under ``--depth auto``: the next one knows what its steps cost."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.conftest import ADMIN, serving
from tests.engine.draft_copies import make_noise
from tests.faults import engine_process, streams

pytestmark = pytest.mark.slow

TOKENS = 60
TIMED = "timing steps of 1 requests at depth 0"
KNOWN = "step times are known from the last engine"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    log = tmp_path_factory.mktemp("step_costs") / "serve.log"
    with serving(log, (*ADMIN, "--depth", "auto", "--step-timing-s", "120")) as running:
        yield running


def describe_planner(gateway):
    answer = httpx.get(f"{gateway.operator}/admin/speculation", timeout=60)
    return answer.json()["planner"]


def count_starts(gateway):
    """Engines that timed steps, and that were given the costs of the last one."""
    written = gateway.log.read_text()
    return written.count(TIMED), written.count(KNOWN)


def kill_and_answer(gateway):
    """Kill the engine in a stream, which goes on."""

    async def hear():
        began = asyncio.Event()
        body = streams.request("chat", 6, TOKENS)
        task = asyncio.create_task(streams.hear_all(gateway.url, [body], began))
        await began.wait()
        assert engine_process.kill(gateway.process.pid)
        return (await task)[0]

    heard = asyncio.run(hear())
    assert heard.whole, heard.error


def test_an_engine_that_takes_the_place_of_another_times_no_steps(gateway):
    first = describe_planner(gateway)
    assert sum(first["steps_by_depth"]) > 100
    assert count_starts(gateway) == (1, 0)
    kill_and_answer(gateway)
    assert count_starts(gateway) == (1, 1)
    second = describe_planner(gateway)
    assert second["mode"] == "auto"
    assert second["cost"]["steps"] > first["cost"]["steps"] / 2
    assert 0 < sum(second["steps_by_depth"]) <= TOKENS
    assert gateway.metric("eaglegate_planner_steps_total") <= TOKENS
    assert second["steps_by_reason"]["cost"] > 0


def test_so_does_one_that_starts_with_another_draft(gateway, tmp_path):
    def post(endpoint, **body):
        answer = httpx.post(f"{gateway.operator}/admin/{endpoint}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text

    timed, known = count_starts(gateway)
    learnt = describe_planner(gateway)["cost"]["steps"]
    post("draft", path=str(make_noise(tmp_path / "noise")))
    exchanged = describe_planner(gateway)
    assert exchanged["cost"]["steps"] >= learnt
    assert exchanged["slices"] == []
    kill_and_answer(gateway)
    assert count_starts(gateway) == (timed, known + 1)
