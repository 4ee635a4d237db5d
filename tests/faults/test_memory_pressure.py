"""A gateway that runs short of memory refuses new work, says so, and takes it again."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from eaglegate.server.access.memory import ProcessTree
from tests.conftest import serving
from tests.workers import GATEWAY, scripted_worker

pytestmark = pytest.mark.alone

MIB = 1 << 20
ROOM = 64 * MIB
ASKED = {"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
BODY = 7_900_000
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    f"content-length: {BODY + 1}\r\n\r\n"
).encode()


def hold(stack: ExitStack, url: str) -> None:
    """A request whose body lacks its last byte."""
    address = urlsplit(url)
    client = stack.enter_context(socket.create_connection((address.hostname, address.port), 30))
    client.sendall(HEAD + b" " * BODY)


def until(gateway, shedding: float) -> None:
    end = time.monotonic() + 20
    while gateway.metric("eaglegate_memory_shedding") != shedding:
        assert time.monotonic() < end, gateway.metric("eaglegate_memory_bytes")
        time.sleep(0.1)


def test_new_work_is_refused_while_memory_is_short(tmp_path):
    with scripted_worker(tmp_path / "worker.log") as worker:
        line = (*GATEWAY, "--upstream", worker.url)
        with serving(tmp_path / "first.log", line, forks=False) as gateway:
            used = ProcessTree(0, gateway.process.pid).used()
        line = (*line, "--memory-limit", str(used + ROOM))
        log = tmp_path / "second.log"
        with (
            serving(log, line, forks=False) as gateway,
            httpx.Client(base_url=gateway.url, timeout=30) as http,
        ):
            assert http.post("/v1/chat/completions", json=ASKED).status_code == 200
            with ExitStack() as held:
                for _ in range(9):
                    hold(held, gateway.url)
                until(gateway, 1.0)
                refused = http.post("/v1/chat/completions", json=ASKED)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "memory_pressure"
                assert int(refused.headers["retry-after"]) >= 1
                ready = http.get("/ready")
                assert (ready.status_code, ready.json()["status"]) == (503, "shedding")
                assert http.get("/health").status_code == 200
            until(gateway, 0.0)
            assert http.get("/ready").status_code == 200
            assert http.post("/v1/chat/completions", json=ASKED).status_code == 200
            assert gateway.metric("eaglegate_requests_refused_total", code="memory_pressure") >= 1
        assert log.read_text().count("load shedding started:") == 1
        assert log.read_text().count("load shedding ended:") == 1
