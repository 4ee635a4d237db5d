"""``eaglegate top`` in a terminal, on a real gateway with keys."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests import workers
from tests.conftest import ROOT, RunningGateway, serving

pytestmark = pytest.mark.slow
KEY = "sk-the-admins-own-key-of-32-bytes"


@contextmanager
def gateway_on(port: int, folder: Path, worker: str) -> Iterator[RunningGateway]:
    arguments = (*workers.GATEWAY, "--upstream", worker, "--admin-api-key", KEY)
    # The last --port counts: serving() asks for any.
    with serving(folder / "serve.log", (*arguments, "--port", str(port))) as running:
        yield running


def ask(url: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
    headers = {"authorization": f"Bearer {KEY}"}
    httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).raise_for_status()


@contextmanager
def top_in_a_terminal(*arguments: str) -> Iterator[Callable[[str], None]]:
    """Run ``eaglegate top``. Yields a function that reads what it shows, up to some words."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 44, 0, 0))
    command = [sys.executable, "-m", "eaglegate.server", "top", *arguments]
    process = subprocess.Popen(command, stdout=theirs, cwd=ROOT)
    os.close(theirs)

    def read_until(words: str) -> None:
        text = ""
        while words not in text:
            text += os.read(ours, 1 << 16).decode(errors="replace")

    try:
        yield read_until
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        os.close(ours)


def test_top_watches_a_gateway_that_goes_away_and_comes_back(tmp_path):
    with ExitStack() as open_, workers.scripted_worker(tmp_path / "worker.log") as worker:
        worker.until_healthy()
        port = workers.free_port()
        url = f"http://127.0.0.1:{port}"
        arguments = [url, "--key", KEY, "--interval", "0.3"]
        with gateway_on(port, tmp_path, worker.url):
            ask(url)
            read_until = open_.enter_context(top_in_a_terminal(*arguments))
            read_until("acceptance length")
        read_until("trying again")
        with gateway_on(port, tmp_path, worker.url):
            ask(url)
            read_until("\x1b[H\x1b[2Jeaglegate")
