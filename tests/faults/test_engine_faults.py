"""Faults of a real engine under a served gateway, a few of each; the modules beside do more."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import ADMIN, serving
from tests.faults import engine_process, kills, streams, vanish
from tests.forks import Limits

pytestmark = pytest.mark.slow

ARGUMENTS = (
    *ADMIN,
    "--dtype=float32",  # No two tokens are equal within the rounding of another batch.
    "--depth=3",
    "--engine-hang-s",
    "10",
    "--drain-s",
    "60",
)


FILES = 1024
CONNECTIONS = 1150


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    log = tmp_path_factory.mktemp("faults") / "serve.log"
    with serving(log, ARGUMENTS, limits=Limits(files=FILES)) as running:
        yield running


def disturbed_as_undisturbed(gateway, bodies, disturb):
    """Both runs say the same; ``disturb`` is called when a stream of the second has begun."""

    async def heard():
        undisturbed = await streams.hear_all(gateway.url, bodies)
        began = asyncio.Event()
        task = asyncio.create_task(streams.hear_all(gateway.url, bodies, began))
        await disturb(began)
        return undisturbed, await task

    for undisturbed, disturbed in zip(*asyncio.run(heard()), strict=True):
        assert undisturbed.whole, undisturbed.error
        assert disturbed.whole, disturbed.error
        assert disturbed.said == undisturbed.said, kills.difference(
            undisturbed.said, disturbed.said
        )


def outcome(gateway, name):
    return gateway.metric("eaglegate_interrupted_requests_total", outcome=name) or 0


def test_streams_survive_the_death_of_the_engine(gateway):
    report = kills.Report(kills=1)
    asyncio.run(kills.disturbed(gateway, report, 8, 300, minutes=3))
    assert (report.broken, report.differing) == (0, 0), report.errors
    assert report.kills == 1
    assert report.outcomes["resumed"] > 0
    assert report.outcomes["lost"] == report.outcomes["quarantined"] == 0


def test_explanations_of_disturbed_requests_add_up(gateway):
    """Streams of every kind, some of which outlived an engine, and a refused request."""
    refused = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "temperature": 3}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=refused, timeout=60)
    assert answer.status_code == 400
    url = f"{gateway.operator}/debug/requests"
    listed = httpx.get(url, timeout=60).json()["recent"]
    rows = [httpx.get(f"{url}/{row['id']}", timeout=60).json() for row in listed]
    assert {"completed", "refused"} <= {row["outcome"] for row in rows}
    choices = [choice for row in rows for choice in row.get("choices", ())]
    assert any(choice["interruptions"] for choice in choices)
    for row in rows:
        parts = [part["ms"] for part in row["parts"]]
        assert sum(parts) == pytest.approx(row["wall_ms"], rel=0.02, abs=0.2), row
        assert min(parts, default=0) >= 0
    for choice in choices:
        assert sum(run["steps"] for run in choice["runs"]) == choice["steps"]


def disturb_by(gateway, bodies, how):
    """The signal ``how`` ends the engine while streams run: they say the same as without it, and
    the cause is in the status and in the log."""

    async def send(began):
        await began.wait()
        assert engine_process.kill(gateway.process.pid, how)

    before = len(losses(gateway))
    disturbed_as_undisturbed(gateway, bodies, send)
    # On a busy machine the next engine may hang for a while, and be lost, too.
    last = losses(gateway)[before]
    assert last["ended_by"] == how.name
    assert last["lived_s"] > 0
    cause = f"{last['cause']} after {last['lived_s']} s: {how.name}"
    assert f"cause of the engine loss: {cause}" in gateway.log.read_text()
    return last["cause"]


def losses(gateway):
    return httpx.get(f"{gateway.operator}/admin/status", timeout=60).json()["engine_losses"]


def test_a_hanging_engine_is_replaced_and_its_streams_go_on(gateway):
    bodies = [streams.request(kind, 3, 200) for kind in ("chat", "structured")]
    assert disturb_by(gateway, bodies, signal.SIGSTOP) == "hung"
    assert gateway.metric("eaglegate_engine_losses_total", cause="hung") > 0
    assert outcome(gateway, "quarantined") == 0


def test_prompts_that_were_being_read_are_read_again(gateway):
    before = outcome(gateway, "rerun")

    async def kill(_began):
        while not gateway.metric("vllm:num_requests_running"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert engine_process.kill(gateway.process.pid)

    disturbed_as_undisturbed(gateway, [streams.request("long", at, 20) for at in range(3)], kill)
    assert outcome(gateway, "rerun") > before


def test_structured_answers_are_replayed(gateway):
    before = outcome(gateway, "replayed")
    bodies = [streams.request("structured", at, 400) for at in range(4)]
    assert disturb_by(gateway, bodies, signal.SIGABRT) == "died"
    assert outcome(gateway, "replayed") > before


def test_seeded_text_and_accounts_are_exact_when_the_engine_is_killed(tmp_path):
    """Resumed behind its tokens, or replayed where a penalty counts them. Lookups write a part.

    The next engine is given the step times that the first one learnt.
    """
    lookups = ("--lookup=8", "--no-async-scheduling")
    exact = (*ARGUMENTS, "--depth", "auto", "--engine-hang-s", "60", *lookups)
    with serving(tmp_path / "serve.log", exact) as gateway:
        check_exact(gateway)
        assert gateway.log.read_text().count("step times are known from the last engine") == 1


def check_exact(gateway):
    def count(name, **labels):
        return gateway.metric(f"eaglegate_{name}_total", **labels) or 0

    accepted_before = []

    async def kill(began):
        await began.wait()
        accepted_before.append(count("drafter_accepted_tokens", drafter="lookup"))
        assert engine_process.kill(gateway.process.pid)

    bodies = [
        streams.request(kind, at, 300) | fields
        for at in range(2)
        for kind in ("chat", "penalised")
        for fields in ({"temperature": 1.2, "seed": at}, {})
    ]
    disturbed_as_undisturbed(gateway, bodies, kill)
    assert outcome(gateway, "resumed") > 0
    assert outcome(gateway, "replayed") > 0
    explained = count("first_tokens") + count("accepted_tokens") + count("decode_steps")
    assert count("completion_tokens") == explained - count("lost_bonus_tokens") > 0
    assert count("unaccounted_tokens") == 0
    assert 0 < accepted_before[0] < count("drafter_accepted_tokens", drafter="lookup")
    for name in ("verify_steps", "drafted_tokens", "accepted_tokens"):
        assert count(f"drafter_{name}") == count(name)


def flood(stack, url):
    """More idle connections than the gateway may open files."""
    address = urlsplit(url)
    for _ in range(CONNECTIONS):
        client = stack.enter_context(socket.socket())
        client.settimeout(5)
        with suppress(OSError):
            client.connect((address.hostname, address.port))


def test_an_engine_killed_while_it_starts_again_is_started_once_more(gateway):
    """Beside idle connections, which leave files for engines and are not kept for ever."""
    pid = gateway.process.pid

    async def kill_twice(began):
        await began.wait()
        await asyncio.to_thread(flood, stack, gateway.url)
        assert engine_process.open_files(pid) < FILES - 64, "files are left for the engine"
        first = engine_process.engine_pid(pid)
        assert engine_process.kill(pid)
        os.kill(await engine_process.next_one(pid, first), signal.SIGKILL)

    with ExitStack() as stack:
        disturbed_as_undisturbed(gateway, [streams.request("chat", 5, 600)], kill_twice)
        assert gateway.metric("eaglegate_engine_losses_total", cause="start") >= 1
        end = time.monotonic() + 60
        while engine_process.open_files(pid) > FILES // 4:
            assert time.monotonic() < end, "idle connections stay"
            time.sleep(0.5)


def test_clients_that_vanish_leave_nothing_behind(gateway):
    left = asyncio.run(vanish.crowd(gateway, 60, seed=random.randrange(2**31)))
    assert (left.running, left.inside) == (0, 0)
    assert left.files_after <= left.files_before + 8
    assert left.tasks_after <= left.tasks_before + 2


def test_a_signal_to_the_group_drains(gateway):
    """Ctrl-C sends such a signal: every process gets it, and each stream gets its time."""
    pids = [gateway.process.pid, *engine_process.descendants(gateway.process.pid)]

    async def send(began):
        await began.wait()
        for pid in pids:
            os.kill(pid, signal.SIGINT)

    disturbed_as_undisturbed(gateway, [streams.request("chat", at, 300) for at in range(4)], send)
    assert gateway.process.wait(60) == 0
    engine_process.wait_until_gone(pids[1:])
