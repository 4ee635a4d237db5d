"""``eaglegate draft`` on a served gateway: labels, a killed engine, a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.conftest import ADMIN, ROOT, RunningGateway, serving
from tests.engine.draft_copies import make_noise, perturb
from tests.faults.engine_process import engine_pid, kill

pytestmark = pytest.mark.slow

QUESTIONS = ("Count from one to twenty.", "What is 12 plus 30?", "Explain rain to a child.")


def command(gateway: RunningGateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [
        sys.executable,
        "-m",
        "eaglegate.server",
        "draft",
        *arguments,
        "--url",
        gateway.operator,
    ]
    return subprocess.run([*line, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)


def ask_all(gateway: RunningGateway) -> list[str]:
    texts = []
    for question in QUESTIONS:
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 60,
        }
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120)
        texts.append(answer.json()["choices"][0]["message"]["content"] or "")
    return texts


def acceptance(gateway: RunningGateway, draft: str) -> float:
    verify = gateway.metric("eaglegate_draft_verify_steps_total", draft=draft)
    accepted = gateway.metric("eaglegate_draft_accepted_tokens_total", draft=draft)
    assert verify is not None
    assert accepted is not None
    return 1 + accepted / verify


def show(gateway: RunningGateway) -> dict:
    return dict(json.loads(command(gateway, "show").stdout))


def test_a_promoted_draft_outlives_its_engine_and_its_gateway(tmp_path: Path) -> None:
    store = ("--draft-store", str(tmp_path / "store"), "--log-format=json", "--depth=3", *ADMIN)
    with serving(tmp_path / "one.log", store) as gateway:
        texts = ask_all(gateway)
        demo = show(gateway)["serving"]["fingerprint"]
        refused = command(gateway, "swap", str(ROOT / "engine/demo/eagle3"))
        assert refused.returncode == 1
        assert "eagle3" in refused.stderr
        near = json.loads(command(gateway, "swap", str(perturb(tmp_path / "near"))).stdout)
        near_name = near["serving"]["fingerprint"]
        assert ask_all(gateway) == texts
        trial = command(gateway, "swap", str(make_noise(tmp_path / "noise")), "--trial")
        noise_name = json.loads(trial.stdout)["serving"]["fingerprint"]
        assert ask_all(gateway) == texts
        assert acceptance(gateway, noise_name) < 1.2 < 1.6 < acceptance(gateway, demo)
        first = engine_pid(gateway.process.pid)
        kill(gateway.process.pid)
        wait_restarted(gateway, first)
        assert ask_all(gateway) == texts
        state = show(gateway)
        assert (state["serving"]["fingerprint"], state["trial"]) == (near_name, False)
        assert [swap["kind"] for swap in state["swaps"]] == ["swap", "trial", "restart"]
        access = [line for line in gateway.log.read_text().splitlines() if '"drafts"' in line]
        assert json.loads(access[-1])["drafts"] == [near_name]
    with serving(tmp_path / "two.log", store) as again:
        assert show(again)["serving"]["fingerprint"] == near_name
        assert ask_all(again) == texts
        assert acceptance(again, near_name) > 1.6
        back = command(again, "rollback")
        assert "no earlier draft" in back.stderr


def wait_restarted(gateway: RunningGateway, first: int | None) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        ready = httpx.get(f"{gateway.url}/ready").status_code == 200
        if ready and engine_pid(gateway.process.pid) not in (None, first):
            return
        time.sleep(0.5)
    raise AssertionError("the engine did not come back")
