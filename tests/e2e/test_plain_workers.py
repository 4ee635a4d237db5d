"""Plain vLLM workers, started by docs/workers.md: one is sound, three wrong on purpose."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import RunningGateway, serving
from tests.workers import GATEWAY, REASONING, WorkerProcess, recipe_worker, said

pytestmark = pytest.mark.slow

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "prompts.jsonl").read_text("utf-8").splitlines()
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
STRUCTURED = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
}
IN_FLIGHT = 4
JOIN_S = 120.0
COMPILED = (REASONING, '--compilation-config={"mode": 2, "backend": "eager"}')
"""Traced by Dynamo as vLLM does on a CPU, without Inductor's half minute."""
WITHOUT_LUCK = "--worker-extension-cls=tests.uninitialised.UninitialisedWorker"
OTHER_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@contextmanager
def gateway_before(
    log: Path, workers: Sequence[AbstractContextManager[WorkerProcess]]
) -> Iterator[tuple[RunningGateway, list[str]]]:
    """A gateway that probes ``workers``, and their addresses."""
    with ExitStack() as stack:
        running = [stack.enter_context(worker) for worker in workers]
        for worker in running:
            worker.until_healthy()
        urls = [worker.url for worker in running]
        line = (*GATEWAY, f"--upstream-probe-s={JOIN_S}", "--upstream", ",".join(urls))
        yield stack.enter_context(serving(log, line)), urls


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("sound")
    worker = recipe_worker(folder / "worker.log", [REASONING])
    with gateway_before(folder / "serve.log", [worker]) as (gateway, _):
        yield gateway


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningGateway, list[str]]]:
    folder = tmp_path_factory.mktemp("wrong")
    template = folder / "other.jinja"
    template.write_text(OTHER_TEMPLATE)
    workers = [
        recipe_worker(folder / "compiled.log", (*COMPILED, WITHOUT_LUCK), tuned_for_cpus=False),
        recipe_worker(folder / "without_parser.log", []),
        recipe_worker(folder / "template.log", [REASONING, f"--chat-template={template}"]),
    ]
    with gateway_before(folder / "serve.log", workers) as running:
        yield running


def ask(gateway: RunningGateway, prompt: dict, **fields) -> dict:
    body = {"model": "demo", "temperature": 0, "max_tokens": 160} | fields
    body |= {key: value for key, value in prompt.items() if key != "name"}
    body["per_request_spec_decode_metrics"] = "summary"
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def requests() -> Iterator[tuple[dict, dict]]:
    """Chat, structured answers and forced calls, greedy and sampled with a seed in turns."""
    plain = [prompt for prompt in PROMPTS if "tools" not in prompt]
    with_tools = [prompt for prompt in PROMPTS if "tools" in prompt]
    for number in range(4):
        for prompt, fields in (
            (plain[number], {}),
            (plain[number], STRUCTURED),
            (with_tools[number], {"tool_choice": "required"}),
        ):
            yield prompt, fields
            yield prompt, fields | {"temperature": 0.8, "seed": number}


def ask_all(gateway: RunningGateway, **more) -> list[dict]:
    with ThreadPoolExecutor(IN_FLIGHT) as many:
        return list(many.map(lambda pair: ask(gateway, pair[0], **pair[1], **more), requests()))


def drafts(answer: dict) -> dict:
    return answer["metrics"]["speculative_decoding"]


def read_findings(gateway: RunningGateway) -> dict[str, list[dict]]:
    """Wait until all workers have joined; return their findings by address."""
    deadline = time.monotonic() + JOIN_S
    while True:
        workers = httpx.get(f"{gateway.operator}/debug/speculation").json()["workers"]
        if all(worker["state"] == "serving" for worker in workers):
            return {worker["name"]: worker["findings"] for worker in workers}
        assert time.monotonic() < deadline, workers
        time.sleep(0.2)


def test_a_sound_worker_has_no_findings(sound):
    assert list(read_findings(sound).values()) == [[]]
    assert not sound.metric("eaglegate_worker_findings")


def test_it_answers_and_accepts_as_an_engine_in_process(sound, demo_gateway):
    """Text, calls and drafts are equal one by one; greedy and sampled requests share steps."""
    # The engine in this process plans its depth; workers without our scheduler always draft K.
    there, here = ask_all(sound), ask_all(demo_gateway, num_speculative_tokens=3)
    assert [said(answer) for answer in there] == [said(answer) for answer in here]
    assert [drafts(answer) for answer in there] == [drafts(answer) for answer in here]
    assert_structured(there)


def assert_structured(answers: Sequence[dict]) -> None:
    for answer, (_, fields) in zip(answers, requests(), strict=True):
        content, _, calls, finish = said(answer)
        if "response_format" in fields:
            assert finish == "stop"
            assert json.loads(content).keys() == {"name", "count"}
        if "tool_choice" in fields:
            assert finish == "tool_calls"
            assert all(json.loads(arguments) is not None for _, arguments in calls)


def test_each_fault_is_named_at_the_start(wrong):
    gateway, urls = wrong
    found = read_findings(gateway)
    log = gateway.log.read_text()
    named = [
        ("sampling", "--worker-extension-cls"),
        ("reasoning", "--reasoning-parser qwen3"),
        ("template", "--chat-template"),
    ]
    for url, (kind, flag) in zip(urls, named, strict=True):
        assert [finding["kind"] for finding in found[url]] == [kind], (url, found[url])
        (finding,) = found[url]
        assert flag in finding["text"]
        assert f"{url}: {kind}: {finding['text']}" in log


def test_without_a_reasoning_parser_the_gateways_answers_are_right(wrong, tmp_path):
    """The finding says that only thinking budgets are refused there."""
    (_, without_parser, _) = wrong[1]
    log = tmp_path / "serve.log"
    with serving(log, (*GATEWAY, "--upstream", without_parser)) as gateway:
        assert_structured(ask_all(gateway))
        body = {"model": "demo", "messages": PROMPTS[2]["messages"], "thinking_token_budget": 3}
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "'thinking_token_budget' cannot be enforced" in answer.json()["error"]["message"]
    assert "--reasoning-parser" in log.read_text()
