"""``eaglegate top`` in a terminal, on a real gateway with keys."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests import workers
from tests.conftest import ROOT, RunningGateway, serving
from tests.terminals import terminal

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


@pytest.mark.parametrize(
    "size, environment",
    [((100, 40), {}), ((44, 20), {"NO_COLOR": "1", "TERM": "vt100"})],
    ids=["colour", "narrow, no colour"],
)
def test_top_watches_a_gateway_that_goes_away_and_comes_back(tmp_path, size, environment):
    with ExitStack() as open_, workers.scripted_worker(tmp_path / "worker.log") as worker:
        worker.until_healthy()
        port = workers.free_port()
        url = f"http://127.0.0.1:{port}"
        arguments = ["top", url, "--key", KEY, "--interval", "0.3"]
        with gateway_on(port, tmp_path, worker.url):
            ask(url)
            top = open_.enter_context(terminal(arguments, size, **environment))
            assert "acceptance length" in top.read_until("quit")
        top.read_until("trying again")
        with gateway_on(port, tmp_path, worker.url):
            ask(url)
            top.read_until("throughput")
            top.press("q")
            assert top.wait() == 0


def test_top_in_a_pipe_and_with_a_wrong_key(tmp_path):
    def top(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "eaglegate.server", "top", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    with workers.scripted_worker(tmp_path / "worker.log") as worker:
        worker.until_healthy()
        with gateway_on(0, tmp_path, worker.url) as running:
            ask(running.url)
            plain = top(running.operator, "--key", KEY)
            assert plain.returncode == 0, plain.stderr
            assert "throughput" in plain.stdout and f"{worker.url} serving" in plain.stdout
            whole = json.loads(top(running.operator, "--key", KEY, "--json").stdout)
            assert whole["speculation"]["all"]["requests"] == 1
            denied = top(running.operator, "--key", "wrong")
    assert denied.returncode == 1
    assert "EAGLEGATE_ADMIN_API_KEY" in denied.stderr
