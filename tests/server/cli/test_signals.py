"""SIGTERM, SIGINT and SIGHUP on a served port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]
BODY = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": "x"}]}


class Served:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = self.line("ready")

    def line(self, begins: str) -> str:
        """The rest of the next line that begins with ``begins``."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith(begins):
                return text.removeprefix(begins).strip()
        raise AssertionError(f"it ended without saying {begins}")

    def ready(self) -> httpx.Response:
        return httpx.get(f"{self.url}/ready")


@contextmanager
def scripted(seconds: float, grace_s: float, *tls: Path) -> Iterator[Served]:
    given = map(str, (seconds, grace_s, *tls))
    command = [sys.executable, "-m", "tests.server.scripted_server", *given]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.wait()


def test_a_stream_finishes_while_others_are_sent_away():
    with (
        scripted(seconds=1.0, grace_s=30) as served,
        httpx.stream("POST", f"{served.url}/v1/chat/completions", json=BODY) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        while served.ready().status_code == 200:
            pass
        refused = httpx.post(f"{served.url}/v1/chat/completions", json=BODY)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{served.url}/health").status_code == 200
        assert "data: [DONE]" in list(lines)
        assert served.line("lost") == "0"
        assert served.process.wait(10) == 0


@pytest.mark.parametrize("again", [False, True])
def test_unfinished_streams_end_with_an_error_frame_and_are_counted(again):
    with (
        scripted(seconds=600, grace_s=600 if again else 0.2) as served,
        httpx.stream("POST", f"{served.url}/v1/chat/completions", json=BODY) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGINT)
        if again:
            while served.ready().status_code == 200:
                pass
            served.process.send_signal(signal.SIGINT)
        *_, error, done = [line for line in lines if line]
        assert '"type":"service_unavailable"' in error
        assert done == "data: [DONE]"
        assert served.line("lost") == "1"
        assert served.process.wait(10) == 1


def test_idle_it_ends_at_once():
    with scripted(seconds=1, grace_s=600) as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0


def test_hangup_reloads_and_a_broken_file_changes_nothing():
    with scripted(seconds=1, grace_s=1) as served:
        for number in ("1", "2", "3"):
            served.process.send_signal(signal.SIGHUP)
            assert served.line("reloaded") == number
        assert served.ready().status_code == 200
