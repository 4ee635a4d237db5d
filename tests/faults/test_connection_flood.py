"""Idle connections by the thousand, few files, and an engine that has to be started again."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import ADMIN, serving
from tests.faults import engine_process, streams
from tests.forks import Limits

pytestmark = pytest.mark.slow

FILES = 1024
CONNECTIONS = 1150


def flood(stack: ExitStack, url: str) -> None:
    address = urlsplit(url)
    for _ in range(CONNECTIONS):
        client = stack.enter_context(socket.socket())
        client.settimeout(5)
        with suppress(OSError):
            client.connect((address.hostname, address.port))


def test_an_engine_restarts_beside_more_idle_connections_than_there_are_files(tmp_path):
    log, limits = tmp_path / "serve.log", Limits(files=FILES)
    with serving(log, ADMIN, limits=limits) as gateway, ExitStack() as stack:
        pid = gateway.process.pid
        body = streams.request("chat", 3, 60)
        (before,) = asyncio.run(streams.hear_all(gateway.url, [body]))
        flood(stack, gateway.url)
        assert engine_process.open_files(pid) < FILES - 64, "files are left for the engine"
        assert httpx.get(f"{gateway.url}/health", timeout=30).status_code == 200
        first = engine_process.engine_pid(pid)
        assert engine_process.kill(pid)
        flood(stack, gateway.url)
        (after,) = asyncio.run(streams.hear_all(gateway.url, [body]))
        assert engine_process.engine_pid(pid) not in (None, first)
        assert gateway.process.poll() is None, log.read_text()[-3000:]
        assert before.whole
        assert after.whole
        until_closed(pid)


def until_closed(pid: int) -> None:
    """Connections without a request are not kept for ever."""
    end = time.monotonic() + 60
    while engine_process.open_files(pid) > FILES // 4:
        assert time.monotonic() < end, "idle connections stay"
        time.sleep(0.5)
