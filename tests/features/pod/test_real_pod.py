"""vLLM's own server with the pod's scheduler, beside one without it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import psutil
import pytest

from eaglegate.engine.vllm_contract import POD_SCHEDULER
from tests.conftest import ROOT, SAMPLE, serving
from tests.forks import SOURCES
from tests.workers import GATEWAY, MODEL, SPECULATION, WorkerProcess, said, vllm_worker

pytestmark = pytest.mark.slow

POD = f"--scheduler-cls={POD_SCHEDULER}"
SMALL = "--kv-cache-memory-bytes=268435456"
ROUTE = "/eaglegate/speculation"
K = SPECULATION["num_speculative_tokens"]
PROMPTS = ("Tell me a story about a cat.", "Write the numbers from one to twenty.")
PAIRS = {
    "eaglegate_pod_verify_steps_total": "vllm:spec_decode_num_drafts_total",
    "eaglegate_pod_draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "eaglegate_pod_accepted_tokens_total": "vllm:spec_decode_num_accepted_tokens_total",
}
SETTLE_S = 20.0


def read_ranks(page: str, name: str) -> dict[str, float]:
    """The values of a metric by the label ``engine``."""
    return {
        re.search(r'engine="(\d+)"', labels)[1]: float(value)
        for found, labels, value in SAMPLE.findall(page)
        if found == name
    }


def assert_accounts_agree(pod: WorkerProcess) -> dict[str, float]:
    """Wait until the pod's counters equal vLLM's at every rank, and return their sums."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        page = httpx.get(f"{pod.url}/metrics").text
        ours = {name: read_ranks(page, name) for name in PAIRS}
        theirs = {name: read_ranks(page, PAIRS[name]) for name in PAIRS}
        if ours == theirs:
            return {name: sum(ranks.values()) for name, ranks in ours.items()}
        assert time.monotonic() < deadline, (ours, theirs)
        time.sleep(0.2)


def chat(url: str, prompt: str = PROMPTS[0], rank: str = "0", **fields: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": prompt}]}
    body |= {"temperature": 0, "max_tokens": 48} | fields
    headers = {"X-data-parallel-rank": rank}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def answer_client(url: str) -> list[Any]:
    """What a plain OpenAI client gets: chats, the same as a stream, completions."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120)
    got: list[Any] = []
    for prompt in PROMPTS:
        shared = {"model": "demo", "temperature": 0, "max_tokens": 48}
        asked = shared | {"messages": [{"role": "user", "content": prompt}]}
        choice = client.chat.completions.create(**asked).choices[0]
        chunks = list(client.chat.completions.create(**asked, stream=True))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        for field in ("content", "reasoning"):
            whole = getattr(choice.message, field, None) or ""
            assert "".join(getattr(delta, field, None) or "" for delta in deltas) == whole
            got.append(whole)
        got.append(choice.finish_reason)
        endless = {"ignore_eos": True}
        text = client.completions.create(**shared, prompt=prompt, extra_body=endless)
        got.append(text.choices[0].text)
    return got


@dataclass
class Plain:
    """What a server without the flag answered and logged before it ended."""

    answers: list[Any]
    route: int
    page: str
    log: str


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    log = tmp_path_factory.mktemp("plain") / "serve.log"
    with vllm_worker(log, (), VLLM_LOGGING_LEVEL="INFO") as server:
        server.until_healthy()
        answers = answer_client(server.url)
        page = httpx.get(f"{server.url}/metrics").text
        logged = log.read_text().replace(str(ROOT), "")
        return Plain(answers, httpx.get(server.url + ROUTE).status_code, page, logged)


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    log = tmp_path_factory.mktemp("pod") / "serve.log"
    variables = {"VLLM_PLUGINS": "eaglegate", "EAGLEGATE_BOUND_ROUTE": "1"}
    with vllm_worker(log, (POD,), **variables) as server:
        server.until_healthy()
        yield server


def bound(pod: WorkerProcess, depth: int) -> None:
    assert httpx.put(pod.url + ROUTE, json={"bound": depth}).json() == {"bound": [min(depth, K)]}


def test_nothing_happens_unasked(plain: Plain) -> None:
    assert "eaglegate" not in plain.log
    assert "eaglegate_" not in plain.page
    assert plain.route == 404


def test_plain_clients_get_the_same_answers(plain: Plain, pod: WorkerProcess) -> None:
    assert answer_client(pod.url) == plain.answers
    assert all(assert_accounts_agree(pod).values())


def test_texts_at_every_bound_are_equal(pod: WorkerProcess) -> None:
    texts = set()
    for depth in range(K + 1):
        bound(pod, depth)
        before = assert_accounts_agree(pod)
        texts.add(repr([said(chat(pod.url, prompt)) for prompt in PROMPTS]))
        steps, drafted, _ = (now - before[name] for name, now in assert_accounts_agree(pod).items())
        assert drafted <= depth * steps
    bound(pod, K)
    assert len(texts) == 1


def test_gauges_and_the_route_tell_the_last_steps(pod: WorkerProcess) -> None:
    chat(pod.url, max_tokens=100)
    page = httpx.get(f"{pod.url}/metrics").text
    steps, drafted, accepted = (read_ranks(page, name)["0"] for name in PAIRS)
    gauges = {
        name: read_ranks(page, f"eaglegate_pod_{name}")["0"]
        for name in ("acceptance_length", "drafted_per_step", "fallback_ratio", "token_rate")
    }
    assert 1 < gauges["acceptance_length"] <= 1 + gauges["drafted_per_step"] <= 1 + K
    assert 0 <= gauges["fallback_ratio"] < 1
    assert gauges["token_rate"] > 0
    undrafted = sum(
        float(value)
        for name, _, value in SAMPLE.findall(page)
        if name == "eaglegate_pod_undrafted_steps_total"
    )
    assert read_ranks(page, "eaglegate_pod_decode_steps_total")["0"] == steps + undrafted
    (planner,) = httpx.get(f"{pod.url}{ROUTE}?recent=2").json()
    assert planner["mode"] == "auto"
    assert len(planner["recent"]) == 2
    assert sum(planner["steps_by_depth"])
    assert accepted <= drafted


def test_a_gateway_in_front_chooses_depths_and_counts_once(
    pod: WorkerProcess, tmp_path: Path
) -> None:
    counted = dict.fromkeys(PAIRS, 0)
    with serving(tmp_path / "serve.log", (*GATEWAY, "--upstream", pod.url)) as gateway:
        before = assert_accounts_agree(pod)  # its start asks the pod, too
        for depth in (0, 2, K, None):
            wish = {} if depth is None else {"num_speculative_tokens": depth}
            wish |= {"per_request_spec_decode_metrics": "detailed"}
            answer = chat(gateway.url, **wish)
            account = answer["metrics"]["speculative_decoding"]
            drafts = account["per_step_drafted"]
            assert max(drafts, default=0) <= (K if depth is None else depth)
            assert not depth or depth in drafts
            fields = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
            for name, field in zip(PAIRS, fields, strict=True):
                counted[name] += account[field]
        steps, _, accepted = counted.values()
        assert gateway.metric("eaglegate_verify_steps_total") == steps
        assert gateway.metric("eaglegate_accepted_tokens_total") == accepted
    after = assert_accounts_agree(pod)
    assert {name: after[name] - before[name] for name in PAIRS} == counted


def test_a_killed_engine_ends_the_server_as_vllm_does(pod: WorkerProcess) -> None:
    children = psutil.Process(pod.process.pid).children()
    (engine,) = (child for child in children if "EngineCore" in "".join(child.cmdline()))
    engine.kill()
    pod.process.wait(60)


def test_a_wrong_draft_ends_the_start(tmp_path: Path) -> None:
    wrong = orjson.dumps(SPECULATION | {"model": MODEL}).decode()
    arguments = (POD, f"--speculative-config={wrong}")
    with vllm_worker(tmp_path / "log", arguments, VLLM_LOGGING_LEVEL="INFO") as server:
        assert server.process.wait(120) == 1
    said = server.log.read_text()
    assert "eaglegate: " in said
    assert "draft-is-target" in said
    assert "Traceback" not in said
    assert "EngineCore" not in said, "weights were loaded"


def test_two_ranks_have_a_planner_and_gauges_each(tmp_path: Path) -> None:
    ranks = {"0", "1"}
    arguments = (POD, SMALL, "--data-parallel-size=2")
    # vLLM 0.33 gives each rank of a CPU a memory node, of which this machine may have one
    variables = {"VLLM_PLUGINS": "eaglegate", "VLLM_CPU_SIM_MULTI_NUMA": "1"}
    with vllm_worker(tmp_path / "log", arguments, **variables) as server:
        server.until_healthy()
        for rank in ranks:
            chat(server.url, rank=rank)
        assert_accounts_agree(server)
        page = httpx.get(f"{server.url}/metrics").text
        assert read_ranks(page, "eaglegate_pod_acceptance_length").keys() == ranks
        planners = httpx.get(server.url + ROUTE).json()
        assert [sum(planner["steps_by_depth"]) > 0 for planner in planners] == [True, True]
        assert httpx.put(server.url + ROUTE, json={"bound": 0}).status_code == 403


@pytest.mark.gpu_path
def test_both_runners_need_no_list_of_plugins(tmp_path: Path) -> None:
    path = os.environ.get("PYTHONPATH", SOURCES)  # the second runner's has tests/gpu_path
    variables = {"VLLM_LOGGING_LEVEL": "INFO", "PYTHONPATH": path}
    with vllm_worker(tmp_path / "log", (POD, SMALL), **variables) as server:
        server.until_healthy()
        is_first = "using the V1 model runner" in server.log.read_text()
        assert is_first != (os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1")
        assert httpx.get(server.url + ROUTE).status_code == 404
        assert said(chat(server.url)) == said(chat(server.url))
        assert all(assert_accounts_agree(server).values())
