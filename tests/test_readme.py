"""The README is true: every command in it is run here or by CI."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import run_python

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOCAL = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


CURL = [block for block in blocks("sh") if block.startswith("curl")]
MAKE = [block.strip() for block in blocks("sh") if block.startswith("make")]
OTHERS = [block for block in blocks("sh") if not block.startswith(("curl", "make"))]


def test_every_block_is_known():
    assert len(CURL) >= 4
    assert MAKE == ["make serve", "make test"]
    assert [block.strip() for block in OTHERS] == [".venv/bin/eaglegate check"]


def test_ci_runs_the_test_command():
    parts = re.search(r"^parts=\((.*)\)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert parts and "test" in parts[1].split()


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("command", CURL)
def test_the_curl_lines_work(demo_gateway, command):
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-ec", command.replace(LOCAL, demo_gateway.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not re.search(r'"error": ?[^n]', done.stdout)
    assert re.search(r'choices|acceptance_length|"output"|"content"', done.stdout)


@pytest.mark.slow
def test_the_python_example_works(demo_gateway):
    (code,) = blocks("python")
    script = code.replace(LOCAL, demo_gateway.url)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "47" in done.stdout


@pytest.mark.slow
def test_check_of_the_demo_finds_nothing():
    done = run_python(["-m", "eaglegate.server", "check", "--port", "0"], 120)
    assert "EAGLE 3.1: fc_norm x3, norm_output" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
