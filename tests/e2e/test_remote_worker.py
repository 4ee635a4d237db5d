"""A gateway in front of a real vLLM server: the same answers, the same account."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import RunningGateway, serving
from tests.workers import GATEWAY, PLANNING, WorkerProcess, said, vllm_worker

pytestmark = pytest.mark.slow

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "prompts.jsonl").read_text("utf-8").splitlines()[::2]
]
PAIRS = {
    "verify_steps": "num_drafts",
    "drafted_tokens": "num_draft_tokens",
    "accepted_tokens": "num_accepted_tokens",
}
LONG = {"messages": [{"role": "user", "content": "Tell me a story about a cat."}]}
SETTLE_S = 20.0
DETAILED = {"per_request_spec_decode_metrics": "detailed"}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with vllm_worker(tmp_path_factory.mktemp("worker") / "worker.log") as running:
        running.until_healthy()
        yield running


@pytest.fixture(scope="module")
def gateway(worker, tmp_path_factory):
    arguments = (*GATEWAY, "--upstream", worker.url, "--engine-wait-s", "3")
    with serving(tmp_path_factory.mktemp("remote") / "serve.log", arguments) as running:
        yield running


@pytest.fixture(scope="module")
def text_gateway(gateway, worker, tmp_path_factory):
    arguments = (*GATEWAY, "--upstream", f"text+{worker.url}")
    with serving(tmp_path_factory.mktemp("text") / "serve.log", arguments) as running:
        yield running


@pytest.fixture(scope="module")
def planning(tmp_path_factory):
    """A worker that plans depths, and a gateway before it."""
    folder = tmp_path_factory.mktemp("planning")
    with vllm_worker(folder / "worker.log", PLANNING) as running:
        running.until_healthy()
        with serving(folder / "serve.log", (*GATEWAY, "--upstream", running.url)) as before:
            yield running, before


def ask(gateway: RunningGateway, prompt: dict, **fields) -> dict:
    body = {"model": "demo", "temperature": 0, "max_tokens": 120}
    body |= {key: value for key, value in prompt.items() if key != "name"} | fields
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def drafts(answer: dict) -> dict:
    return answer["metrics"]["speculative_decoding"]


def streamed(gateway: RunningGateway, prompt: dict, **fields) -> list[dict]:
    body = {"model": "demo", "temperature": 0, "max_tokens": 120, "stream": True}
    body |= {key: value for key, value in prompt.items() if key != "name"} | fields
    url = f"{gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        frames = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    return [json.loads(frame) for frame in frames[:-1]]


def begun(lines) -> None:
    """Read on until the model has said something."""
    next(line for line in lines if '"reasoning":' in line or '"content":' in line)


def idle(worker: WorkerProcess) -> None:
    """Wait until the worker has nothing left to do."""
    deadline = time.monotonic() + SETTLE_S
    while worker.metric("vllm:num_requests_running"):
        assert time.monotonic() < deadline, "the worker still runs"


@pytest.fixture(scope="module")
def answers(gateway) -> list[dict]:
    """What the worker answers, each prompt alone."""
    return [ask(gateway, prompt, **DETAILED) for prompt in PROMPTS]


def test_answers_and_accounts_are_those_of_an_engine_in_process(answers, demo_gateway):
    for prompt, there in zip(PROMPTS, answers, strict=True):
        # The engine in this process plans its depth; the worker always drafts 3 tokens.
        here = ask(demo_gateway, prompt, num_speculative_tokens=3, **DETAILED)
        assert said(there) == said(here), prompt["name"]
        assert drafts(there) == drafts(here), prompt["name"]
        assert there["usage"] == here["usage"] | {
            "prompt_tokens_details": there["usage"]["prompt_tokens_details"]
        }


def test_totals_are_the_workers_own(gateway, worker):
    with same_totals(gateway, worker), ThreadPoolExecutor(8) as many:
        list(many.map(lambda prompt: streamed(gateway, prompt), PROMPTS[:16]))
        list(many.map(lambda depth: ask(gateway, LONG, num_speculative_tokens=depth), range(4)))
        list(many.map(lambda most: ask(gateway, LONG, max_tokens=most), range(5, 13)))
        ask(gateway, LONG, structured_outputs={"regex": "[a-z ]{5,40}[.]"})


def test_a_worker_that_plans_says_the_same_and_accounts_for_depths_of_its_own(answers, planning):
    worker, gateway = planning
    with same_totals(gateway, worker), ThreadPoolExecutor(4) as many:
        planned = list(many.map(lambda prompt: ask(gateway, prompt, **DETAILED), PROMPTS))
    for prompt, answer, fixed in zip(PROMPTS, planned, answers, strict=True):
        assert said(answer) == said(fixed), prompt["name"]
    assert len({depth for one in planned for depth in drafts(one)["per_step_drafted"]}) > 1
    own = drafts(ask(gateway, LONG, num_speculative_tokens=1, **DETAILED))
    assert set(own["per_step_drafted"]) == {1}


@contextmanager
def same_totals(gateway: RunningGateway, worker: WorkerProcess) -> Iterator[None]:
    """Assert that the block adds the same to the gateway's totals and to the worker's."""
    idle(worker)
    before = totals(gateway), theirs(worker)
    yield
    idle(worker)
    after = totals(gateway), theirs(worker)
    ours, worker_own = (
        {name: new[name] - old[name] for name in new}
        for old, new in zip(before, after, strict=True)
    )
    assert ours["verify_steps"] == worker_own["verify_steps"] > 100
    assert ours["drafted_tokens"] == worker_own["drafted_tokens"]
    assert ours["accepted_tokens"] + ours["cut_tokens"] == worker_own["accepted_tokens"]
    assert ours["unaccounted_tokens"] == 0
    assert ours["completion_tokens"] == (
        ours["first_tokens"]
        + ours["accepted_tokens"]
        + ours["decode_steps"]
        - ours["lost_bonus_tokens"]
    )


def totals(gateway: RunningGateway) -> dict[str, float]:
    names = ("cut_tokens", "completion_tokens", "first_tokens", "decode_steps")
    more = ("lost_bonus_tokens", "unaccounted_tokens")
    return {
        name: gateway.metric(f"eaglegate_{name}_total") or 0.0 for name in (*PAIRS, *names, *more)
    }


def theirs(worker: WorkerProcess) -> dict[str, float]:
    return {name: worker.metric(f"vllm:spec_decode_{named}_total") for name, named in PAIRS.items()}


def test_a_stop_string_leaves_tokens_nobody_accounts_for(gateway, worker):
    whole = said(ask(gateway, LONG))[0]
    word = whole.split()[3]  # not a word of the thoughts, where a stop string counts, too
    before = totals(gateway)["unaccounted_tokens"]
    cut = ask(gateway, LONG, stop=[word], per_request_spec_decode_metrics="detailed")
    assert said(cut)[0] == whole[: whole.index(word)]
    assert "metrics" not in cut
    assert totals(gateway)["unaccounted_tokens"] > before
    idle(worker)


def test_a_client_that_leaves_frees_the_worker(gateway, worker):
    body = {"model": "demo", "stream": True, "max_tokens": 3000, "ignore_eos": True, **LONG}
    url = f"{gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        begun(lines)
        begun(lines)
        assert worker.metric("vllm:num_requests_running") == 1
    idle(worker)


def test_the_banner_names_unknown_speculation(gateway, text_gateway):
    assert "K = 3, in the worker; method and draft unknown" in gateway.banner
    assert "unknown: the worker speaks text only" in text_gateway.banner


def test_text_alone_gives_the_same_answers_and_no_account(text_gateway, gateway):
    for prompt in PROMPTS[:2]:
        asked = {"per_request_spec_decode_metrics": "detailed"}
        answer = ask(text_gateway, prompt, **asked)
        assert said(answer)[:3] == said(ask(gateway, prompt))[:3], prompt["name"]
        assert "metrics" not in answer
        assert "accepted_prediction_tokens" not in answer["usage"]["completion_tokens_details"]
    assert not text_gateway.metric("eaglegate_verify_steps_total")


def test_the_death_of_the_only_worker_ends_its_streams_with_an_error(gateway, worker):
    body = {"model": "demo", "stream": True, "max_tokens": 3000, "ignore_eos": True, **LONG}
    url = f"{gateway.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        begun(lines)
        worker.kill()
        frames = [line[6:] for line in lines if line.startswith("data: ")]
    assert frames[-1] == "[DONE]"
    assert json.loads(frames[-2])["error"]["code"] == "engine_dead"
    assert httpx.get(f"{gateway.url}/ready").status_code == 503
