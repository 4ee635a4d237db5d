"""Faults of a real engine under a served gateway, a few of each; the modules beside do more."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import httpx
import pytest

from tests.conftest import ADMIN, serving
from tests.faults import engine_process, kills, streams, vanish

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
LIMITS = "max-queued: 100\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "limits.yaml"
    path.write_text(LIMITS)
    return path


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, config):
    arguments = (*ARGUMENTS, "--config", str(config))
    with serving(tmp_path_factory.mktemp("faults") / "serve.log", arguments) as running:
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
    report = kills.Report(kills=2)
    asyncio.run(kills.disturbed(gateway, report, 8, 300, minutes=3))
    assert (report.broken, report.differing) == (0, 0), report.errors
    assert report.kills == 2
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
    bodies = [streams.request(kind, 3, 400) for kind in ("chat", "structured")]
    assert disturb_by(gateway, bodies, signal.SIGSTOP) == "hung"
    assert gateway.metric("eaglegate_engine_losses_total", cause="hung") > 0
    assert outcome(gateway, "quarantined") == 0


def test_prompts_that_were_being_read_are_read_again(gateway):
    before = outcome(gateway, "rerun")

    async def kill(_began):
        while not gateway.metric("vllm:num_requests_running"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert engine_process.kill(gateway.process.pid)

    disturbed_as_undisturbed(gateway, [streams.request("long", at, 20) for at in range(8)], kill)
    assert outcome(gateway, "rerun") > before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
def test_structured_answers_are_replayed(gateway, how):
    before = outcome(gateway, "replayed")
    bodies = [streams.request("structured", at, 400) for at in range(4)]
    assert disturb_by(gateway, bodies, how) == "died"
    assert outcome(gateway, "replayed") > before


def test_seeded_text_and_accounts_are_exact_when_the_engine_is_killed(tmp_path):
    """Resumed behind its tokens, or replayed where a penalty counts them. Lookups write a part."""
    lookups = ("--lookup=8", "--no-async-scheduling")
    exact = (*ARGUMENTS, "--depth", "auto", "--engine-hang-s", "60", *lookups)
    with serving(tmp_path / "serve.log", exact) as gateway:
        check_exact(gateway)


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


def test_an_engine_killed_while_it_starts_again_is_started_once_more(gateway):
    async def kill_twice(began):
        await began.wait()
        first = engine_process.engine_pid(gateway.process.pid)
        assert engine_process.kill(gateway.process.pid)
        os.kill(await engine_process.next_one(gateway.process.pid, first), signal.SIGKILL)

    disturbed_as_undisturbed(gateway, [streams.request("chat", 5, 300)], kill_twice)
    assert gateway.metric("eaglegate_engine_losses_total", cause="start") >= 1


def test_the_bound_of_the_depth_holds_now_and_is_taken_while_the_engine_is_away(gateway):
    def drafted_per_step():
        names = ("eaglegate_drafted_tokens_total", "eaglegate_verify_steps_total")
        before = [gateway.metric(name) or 0 for name in names]
        (heard,) = asyncio.run(streams.hear_all(gateway.url, [streams.request("chat", 7, 100)]))
        assert heard.whole
        now = [gateway.metric(name) for name in names]
        return (now[0] - before[0]) / (now[1] - before[1])

    def put(depth):
        """Return whether the bound waits for the next engine."""
        given = {"bound": depth}
        answer = httpx.put(f"{gateway.operator}/admin/speculation", json=given, timeout=60).json()
        assert answer["bound"] == depth
        return answer["bound_pending"]

    assert drafted_per_step() > 2
    assert not put(1)
    assert drafted_per_step() == 1
    before = len(losses(gateway))
    assert engine_process.kill(gateway.process.pid)
    while len(losses(gateway)) == before:
        time.sleep(0.05)
    assert put(2)
    assert 1 < drafted_per_step() <= 2
    assert not put(3)
    assert drafted_per_step() > 2


def test_limits_are_read_again_under_a_running_stream(gateway, config):
    def reload():
        return httpx.post(f"{gateway.operator}/admin/reload", timeout=60)

    def write(text):
        """Write the file at once: a signal must not find an empty one."""
        config.with_suffix(".new").write_text(text)
        config.with_suffix(".new").replace(config)

    async def change(began):
        await began.wait()
        write("max-queued: 7\n")
        assert (await asyncio.to_thread(reload)).json()["bounds"]["queued"] == 7
        write("max-queued: many\n")
        broken = await asyncio.to_thread(reload)
        assert broken.status_code == 400
        gateway.process.send_signal(signal.SIGHUP)
        write("no-such-flag: 1\n")
        broken = await asyncio.to_thread(reload)
        assert "no-such-flag" in broken.json()["error"]["message"]

    disturbed_as_undisturbed(gateway, [streams.request("chat", 9, 300)], change)
    bounds = httpx.get(f"{gateway.operator}/admin/status", timeout=60).json()["bounds"]
    assert bounds["queued"] == 7


def test_clients_that_vanish_leave_nothing_behind(gateway):
    left = asyncio.run(vanish.crowd(gateway, 60, seed=random.randrange(2**31)))
    assert (left.running, left.inside) == (0, 0)
    assert left.files_after <= left.files_before + 8
    assert left.tasks_after <= left.tasks_before + 2


def test_a_pattern_that_never_ends_is_refused_and_stops_nobody(gateway):
    asked = {"structured_outputs": {"regex": "(.?){600}"}, "stream": False}
    body = streams.request("chat", 1, 20) | asked
    del body["stream_options"]
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 400
    assert "too complex" in answer.json()["error"]["message"]


def test_running_requests_finish_before_the_gateway_exits(gateway):
    body = streams.request("chat", 1, 600)

    async def heard():
        began = asyncio.Event()
        task = asyncio.create_task(streams.hear_all(gateway.url, [body], began))
        await began.wait()
        gateway.process.send_signal(signal.SIGTERM)
        return (await task)[0]

    assert asyncio.run(heard()).whole
    pid, began = engine_process.engine_pid(gateway.process.pid), time.monotonic()
    assert gateway.process.wait(60) == 0
    assert time.monotonic() - began < 60
    assert pid is None or not engine_process.title(pid)
