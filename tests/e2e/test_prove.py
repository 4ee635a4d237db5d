"""``eaglegate prove`` as a person runs it; CI also runs it on the demo, where it is green."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conftest import ROOT
from tests.engine.draft_copies import make_noise
from tests.forks import fork_python, run_python

LIMIT_S = 900
KEY = "sesame-open-sesame"
COMMAND = ("-m", "eaglegate.server", "prove")


def prove(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python([*COMMAND, *arguments], LIMIT_S)


@pytest.mark.slow
def test_a_draft_of_noise_is_red_in_its_own_line_alone(tmp_path: Path) -> None:
    noise = make_noise(tmp_path / "noise")
    speculation = json.dumps({"model": str(noise)})
    done = prove(
        *("--quick", "--out", str(tmp_path / "out"), "--api-key", KEY),
        *("--speculative-config", speculation),
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "Traceback" not in done.stderr, "an engine is killed on purpose"
    report = json.loads((tmp_path / "out" / "prove.json").read_text())
    outcomes = {check["check"]: check["outcome"] for check in report["checks"]}
    assert [name for name, outcome in outcomes.items() if outcome == "failed"] == ["acceptance"]
    assert outcomes["greedy text"] == outcomes["accounts"] == "passed"
    assert report["left_out"] == ["speed", "planner"]
    page = (tmp_path / "out" / "prove.html").read_text()
    for text in (page, json.dumps(report), done.stdout.rpartition("\n")[0]):
        for private in (KEY, socket.gethostname(), str(tmp_path.parent)):
            assert private not in text.replace(str(tmp_path / "out"), "")
    assert "--speculative-config" in page


def read_report(folder: Path) -> dict[str, str]:
    report = json.loads((folder / "prove.json").read_text())
    assert report["exit_status"] == 3
    return {check["check"]: check["evidence"] for check in report["checks"]}


@pytest.mark.slow
def test_a_run_ends_at_its_time_limit(tmp_path: Path) -> None:
    done = prove("--quick", "--out", str(tmp_path), "--time-limit", "0.5")
    assert done.returncode == 3, done.stderr[-2000:]
    evidence = read_report(tmp_path)
    assert set(evidence.values()) == {"Not done: the 0.5 s of --time-limit were over."}
    assert "Not done: the 0.5 s" in done.stdout


@pytest.mark.slow
def test_an_interrupted_run_keeps_the_checks_that_were_done(tmp_path: Path) -> None:
    command = [*COMMAND, "--out", str(tmp_path)]
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = fork_python(command, os.environ, errors)
    try:
        while "greedy text: passed" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 3
    finally:
        process.kill()
    evidence = read_report(tmp_path)
    assert "texts at depths" in evidence["greedy text"]
    assert evidence["continuation"] == "Not done: the run was interrupted."


def refuse(*arguments: str) -> str:
    command = [sys.executable, *COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    return done.stderr


def test_unprovable_command_lines_are_usage_errors() -> None:
    assert "--no-such-flag" in refuse("--quick", "--no-such-flag")
    assert "run it where vLLM runs" in refuse("m", "--upstream", "http://127.0.0.1:1")
