"""A failed start prints one sentence that names the flag at fault, and exits with a status other
than 0."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.forks import run_python

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "engine" / "demo"

pytestmark = pytest.mark.slow


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(["-m", "eaglegate.server", "serve", *arguments], 120)


def says(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that is meant for a person."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_busy_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in says(serve("--port", str(port)))


NOWHERE = {"method": "eagle3", "model": "/nowhere/draft", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere/model"], "/nowhere/model"),
        (["--chat-template", "nowhere.jinja"], "--chat-template: "),
        (["--speculative-config", json.dumps(NOWHERE)], "/nowhere/draft"),
        (["--tool-call-parser", "nope"], "hermes"),
    ],
)
def test_a_missing_part_is_named(arguments, words):
    assert words in says(serve(*arguments, "--port", "0"))


def test_a_draft_without_its_flags(tmp_path):
    draft = tmp_path / "draft"
    shutil.copytree(DEMO / "eagle3_1", draft)
    content = json.loads((draft / "config.json").read_text())
    del content["fc_norm"]
    (draft / "config.json").write_text(json.dumps(content))
    config = json.dumps({"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3})
    assert "fc_norm" in says(serve("--port", "0", "--speculative-config", config))


def test_an_unknown_flag_is_named():
    done = serve("--nope")
    assert done.returncode == 2
    assert "--nope" in done.stderr
