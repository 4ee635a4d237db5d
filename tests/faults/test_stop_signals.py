"""Signals that reach the engine, alone or with its group, under a served gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import ADMIN, serving
from tests.faults import engine_process, streams

pytestmark = pytest.mark.slow

TOKENS = 300
DRAIN = ("--drain-s", "600")
OWN_GROUP = ("setsid",)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    log = tmp_path_factory.mktemp("signals") / "serve.log"
    with serving(log, (*ADMIN, *DRAIN), OWN_GROUP) as running:
        yield running


async def hear_through(gateway, bodies, disturb):
    began = asyncio.Event()
    task = asyncio.create_task(streams.hear_all(gateway.url, bodies, began))
    await began.wait()
    disturb()
    return await task


def assert_whole(heard):
    for one in heard:
        assert one.whole, one.error
        assert (one.finish, one.usage["completion_tokens"]) == ("length", TOKENS)


def list_helpers(gateway):
    return list(engine_process.descendants(gateway.process.pid))


def send(number, pids):
    for pid in pids:
        os.kill(pid, number)


def answer_structured(gateway):
    """Ask for structured output, so that there is a grammar child."""
    body = streams.request("structured", 1, 20)
    (heard,) = asyncio.run(streams.hear_all(gateway.url, [body]))
    assert heard.whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_helpers_alone_changes_nothing(gateway, number):
    answer_structured(gateway)
    helpers = list_helpers(gateway)
    assert engine_process.engine_pid(gateway.process.pid) in helpers
    bodies = [streams.request("chat", at, TOKENS) for at in range(8)]
    assert_whole(asyncio.run(hear_through(gateway, bodies, lambda: send(number, helpers))))
    assert list_helpers(gateway) == helpers
    assert not gateway.metric("eaglegate_engine_losses_total")


def test_a_signal_to_the_group_drains(gateway):
    """Ctrl-C sends such a signal: every process gets it, and each stream gets its time."""
    helpers = list_helpers(gateway)
    bodies = [streams.request("chat", at, TOKENS) for at in range(8)]
    heard = asyncio.run(
        hear_through(gateway, bodies, lambda: send(signal.SIGINT, [gateway.process.pid, *helpers]))
    )
    assert_whole(heard)
    assert gateway.process.wait(engine_process.GONE_S) == 0
    engine_process.wait_until_gone(helpers)


def kill_and_wait(gateway, helpers):
    """Nothing outlives a gateway that was killed."""
    gateway.process.kill()
    gateway.process.wait()
    engine_process.wait_until_gone(helpers)


FORKING = """
import multiprocessing, sys
from eaglegate.engine import machine

if __name__ == "__main__":
    machine.detect_platform = lambda: "cuda"
    from vllm.v1.engine import utils
    utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    from eaglegate.server.__main__ import main
    sys.exit(main(sys.argv[4:]))  # behind python -m eaglegate.server
"""


def list_sockets(pid):
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:
            continue
    return {link for link in links if link.startswith("socket:")}


def test_where_vllm_forks_the_engine_shares_no_socket_with_the_gateway(tmp_path, monkeypatch):
    """The way on GPUs: the fork would hold the port, and SIGTERM to it would end the gateway."""
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    own_way = (sys.executable, str(script))
    with serving(tmp_path / "serve.log", ("--no-preflight",), own_way) as gateway:
        children = engine_process.children(gateway.process.pid)
        engines = [pid for pid in children if engine_process.is_engine(pid)]
        assert len(engines) == 1
        shared = list_sockets(gateway.process.pid) & list_sockets(engines[0])
        assert not shared
        os.kill(engines[0], signal.SIGTERM)
        (heard,) = asyncio.run(streams.hear_all(gateway.url, [streams.request("chat", 1, TOKENS)]))
        assert_whole([heard])
        assert httpx.get(f"{gateway.url}/ready").status_code == 200
        kill_and_wait(gateway, engines)
