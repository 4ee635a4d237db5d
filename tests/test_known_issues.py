"""docs/known-issues.md: every command runs next to the demo and prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.server.cli.top.command import make_parser

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "known-issues.md").read_text("utf-8")
LOCAL = "http://127.0.0.1:8000"
RUN = re.findall(r"```sh\n(.*?)```\n((?:<!-- prints: [^\n]* -->\n)+)", PAGE, re.DOTALL)
ALONE = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_is_run_or_starts_a_server_of_its_own():
    assert len(RUN) == PAGE.count("```sh\n") >= 9
    assert len(ALONE) == PAGE.count("```console\n")
    assert PAGE.count("```") == 2 * (len(RUN) + len(ALONE))


def test_the_commands_that_run_alone_exist():
    names = {tuple(shlex.split(line)[:3]) for text in ALONE for line in text.splitlines()[:1]}
    assert ("python", "-m", "tests.faults.kills") in names
    assert (ROOT / "tests/e2e/test_cache_isolation.py").exists()
    assert make_parser().parse_args(["--once"]).once
    help_ = subprocess.run(
        [sys.executable, "-m", "tests.faults.kills", "--help"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert "--kills" in help_.stdout and "--streams" in help_.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which ``eaglegate`` is this checkout's."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "eaglegate"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m eaglegate.server "$@"\n')
    command.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(RUN)))
def test_a_command_prints_what_the_page_says(demo_gateway, tools, at):
    command, prints = RUN[at]
    done = subprocess.run(
        ["bash", "-c", command.replace(LOCAL, demo_gateway.url)],
        capture_output=True, text=True, timeout=300, cwd=ROOT, env=tools, check=False,
    )  # fmt: skip
    for words in re.findall(r"<!-- prints: (.*) -->", prints):
        assert words in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
