"""Faults while the engine starts: a signal to either process, a hang, a draft that kills it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import serving
from tests.faults import engine_process, streams
from tests.forks import Forked, fork_python

pytestmark = pytest.mark.slow

SOON_S = 120
"""Limit, on a busy machine, for work that should take a few seconds."""


class Starting:
    """A gateway whose engine process has just come to life."""

    def __init__(self, process: Forked, log: Path) -> None:
        self.process = process
        self._log = log
        self.engine = self._engine()

    def end(self) -> tuple[int, str]:
        """Wait for the gateway's end; return its status and stderr. None of its processes may be
        left."""
        status = self.process.wait(SOON_S)
        errors = self._log.read_text()
        assert "Traceback" not in errors
        assert not engine_process.is_engine(self.engine)
        return status, errors

    def _engine(self) -> int:
        end = time.monotonic() + SOON_S
        while time.monotonic() < end and self.process.poll() is None:
            pid = engine_process.starting_pid(self.process.pid)
            if pid is not None:
                return pid
            time.sleep(0.02)
        raise AssertionError("no engine process appeared")


@contextmanager
def starting(log: Path, *arguments: str) -> Iterator[Starting]:
    command = ["-m", "eaglegate.server", "serve", "--port", "0", *arguments]
    with log.open("w") as errors:
        process = fork_python(command, os.environ, errors)
    try:
        yield Starting(process, log)
    finally:
        process.kill()
        process.wait()


def test_a_gateway_told_to_stop_while_its_engine_starts_stops_at_once(tmp_path):
    with starting(tmp_path / "log") as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        status, said = gateway.end()
        assert status == 0
        assert "starting vLLM" in said
        assert "warming up" not in said, "it waited for an engine that nobody needs"


def test_an_engine_killed_while_it_starts_ends_the_gateway_with_the_cause(tmp_path):
    with starting(tmp_path / "log") as gateway:
        os.kill(gateway.engine, signal.SIGKILL)
        status, said = gateway.end()
        assert status == 1
        assert re.search("the engine process ended( by SIGKILL)? while it started", said)


def test_an_engine_that_hangs_while_it_starts_is_given_up(tmp_path):
    with starting(tmp_path / "log", "--engine-start-s", "4") as gateway:
        os.kill(gateway.engine, signal.SIGSTOP)
        status, said = gateway.end()
        assert status == 1
        assert "not ready after 4 s" in said
        assert "--engine-start-s" in said


def test_a_crash_loop_ends_with_an_error_frame_and_a_status(tmp_path):
    body = streams.request("structured", 1, 900)
    with (
        serving(tmp_path / "serve.log", ("--engine-failures", "1")) as gateway,
        httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, timeout=60) as told,
    ):
        lines = told.iter_lines()
        next(lines)
        engine = engine_process.engine_pid(gateway.process.pid)
        assert engine_process.kill(gateway.process.pid)
        for _ in range(2):  # the first life served: only failed starts count
            engine = asyncio.run(engine_process.next_one(gateway.process.pid, engine))
            os.kill(engine, signal.SIGKILL)
        *_, error, done = [line for line in lines if line]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert done == "data: [DONE]"
        assert gateway.process.wait(SOON_S) == 1
    assert "lost 2 times in a row" in (tmp_path / "serve.log").read_text()
