"""``eaglegate prove`` as a person runs it; CI also runs it on the demo, where it is green."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.engine.draft_copies import make_noise

LIMIT_S = 900
KEY = "sesame-open-sesame"
ROOT = Path(__file__).parents[2]


def prove(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eaglegate.server", "prove", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False
    )


@pytest.mark.slow
def test_a_draft_of_noise_is_red_in_its_own_line_alone(tmp_path: Path) -> None:
    noise = make_noise(tmp_path / "noise")
    speculation = json.dumps({"model": str(noise)})
    done = prove(
        *("--quick", "--out", str(tmp_path / "out"), "--api-key", KEY),
        *("--speculative-config", speculation),
    )
    assert done.returncode == 1, done.stderr[-2000:]
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


def test_what_cannot_be_proved_is_a_usage_error() -> None:
    assert prove("--quick", "--no-such-flag").returncode == 2
    done = prove("m", "--upstream", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert "run it where vLLM runs" in done.stderr
