"""Our counters, vLLM's own, and the usage clients are told: the same sums, whatever clients do."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from typing import IO

import httpx
import orjson
import pytest

from tests.conftest import RunningGateway, serving

pytestmark = pytest.mark.slow
DEEPEST = 7
OURS = (
    "verify_steps",
    "drafted_tokens",
    "accepted_tokens",
    "cut_tokens",
    "decode_steps",
    "completion_tokens",
    "first_tokens",
    "lost_bonus_tokens",
    "unclaimed_verify_steps",
    "unclaimed_drafted_tokens",
    "unclaimed_accepted_tokens",
)
THEIRS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
PROMPTS = (
    "Write a short poem about rivers.",
    "Count from one to thirty.",
    "Say the word yes ten times.",
    "Explain what a gateway does.",
)


@dataclass
class Told:
    """Usage that clients were told, by response id."""

    completion: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int | None] = field(default_factory=dict)

    def add(self, answer: dict) -> None:
        usage = answer["usage"]
        details = usage.get("completion_tokens_details") or {}
        self.completion[answer["id"]] = usage["completion_tokens"]
        self.accepted[answer["id"]] = details.get("accepted_prediction_tokens")


def counters(gateway: RunningGateway) -> dict[str, float]:
    names = [f"eaglegate_{name}_total" for name in OURS]
    names += [f"vllm:spec_decode_{name}_total" for name in THEIRS]
    return {name: gateway.metric(name) or 0.0 for name in names}


def bodies() -> list[dict]:
    """Several depths, streamed and not; long, cut short, stopped by a string, several choices."""
    dice = random.Random(5)
    shapes = [
        {"max_tokens": 60},
        {"max_tokens": 5},
        {"max_tokens": 6},
        {"max_tokens": 80, "stop": ["e", "\n\n"]},
        {"max_tokens": 40, "stop": ["er", "ou"]},
        {"max_tokens": 24, "n": 2, "temperature": 0.9},
        {"max_tokens": 1},
    ]
    out = []
    for depth, shape, stream in itertools.product((0, 1, 3, DEEPEST), shapes, (False, True)):
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": dice.choice(PROMPTS)}],
            "temperature": 0.0,
            "num_speculative_tokens": depth,
            "stream": stream,
            **shape,
        }
        out.append(body | ({"stream_options": {"include_usage": True}} if stream else {}))
    dice.shuffle(out)
    return out


async def ask(client: httpx.AsyncClient, body: dict, told: Told, slow: bool) -> None:
    if not body["stream"]:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        told.add(answer.json())
        return
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                chunk = orjson.loads(line[6:])
                if chunk.get("usage"):
                    told.add(chunk)
            if slow:
                await asyncio.sleep(0.02)


async def leave(client: httpx.AsyncClient, body: dict, after: int) -> None:
    """Read ``after`` lines and hang up."""
    body = body | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(after):
            await anext(lines)


async def traffic(url: str) -> tuple[Told, int]:
    told, left = Told(), 0
    gate = asyncio.Semaphore(12)

    async def with_gate(work) -> None:
        async with gate:
            await work

    async with httpx.AsyncClient(base_url=url, timeout=120) as client, asyncio.TaskGroup() as group:
        for at, body in enumerate(bodies()):
            group.create_task(with_gate(ask(client, body, told, slow=at % 9 == 0)))
            if at % 8 == 0 and "stop" not in body and body.get("n", 1) == 1:
                plain = {key: value for key, value in body.items() if key != "stream_options"}
                group.create_task(with_gate(leave(client, plain, after=1 + at % 7)))
                left += 1
    return told, left


def settled(gateway: RunningGateway) -> dict[str, float]:
    """The counters once the engine has nothing left to do."""
    for _ in range(100):
        if not gateway.metric("vllm:num_requests_running"):
            before = counters(gateway)
            if before == counters(gateway):
                return before
    raise AssertionError("the engine still runs")


def read_log(gateway: RunningGateway, output: IO[str]) -> list[dict]:
    """Every line that it wrote, on both of its outputs."""
    with output:
        lines = [*gateway.log.read_text().splitlines(), *output]
    return [orjson.loads(line) for line in lines]


async def test_every_step_and_every_token_is_accounted_for(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    log = tmp_path / "serve.log"
    speculation = orjson.dumps({"num_speculative_tokens": DEEPEST}).decode()
    with serving(log, ["--speculative-config", speculation, "--log-format=json"]) as gateway:
        output, gateway.process.stdout = gateway.process.stdout, None  # stays open at its end
        before = settled(gateway)
        async with asyncio.timeout(180):
            told, left = await traffic(gateway.url)
        after = settled(gateway)
    grown = {name: after[name] - before[name] for name in after}
    ours = {name: grown[f"eaglegate_{name}_total"] for name in OURS}
    theirs = {name: grown[f"vllm:spec_decode_{name}_total"] for name in THEIRS}
    logged = read_log(gateway, output)
    assert "vllm.process" in {line["logger"] for line in logged}
    lines = [line for line in logged if "completion_tokens" in line]
    (tmp_path / "account.json").write_bytes(orjson.dumps({"ours": ours, "theirs": theirs}))

    assert ours["verify_steps"] + ours["unclaimed_verify_steps"] == theirs["num_drafts"]
    drafted = ours["drafted_tokens"] + ours["unclaimed_drafted_tokens"]
    assert drafted == theirs["num_draft_tokens"]
    accepted = ours["accepted_tokens"] + ours["cut_tokens"] + ours["unclaimed_accepted_tokens"]
    assert accepted == theirs["num_accepted_tokens"]
    assert ours["completion_tokens"] == (
        ours["first_tokens"]
        + ours["accepted_tokens"]
        + ours["decode_steps"]
        - ours["lost_bonus_tokens"]
    )
    assert ours["completion_tokens"] == sum(line["completion_tokens"] for line in lines)
    completed = {line["id"]: line for line in lines if line["outcome"] == "completed"}
    assert len(lines) - len(completed) == left == sum(line["client_gone"] for line in lines)
    assert {id_: line["completion_tokens"] for id_, line in completed.items()} == told.completion
    assert {
        id_: line["accepted_tokens"] for id_, line in completed.items() if line["drafted_tokens"]
    } == {id_: count for id_, count in told.accepted.items() if completed[id_]["drafted_tokens"]}
    assert ours["accepted_tokens"] > 0
    assert ours["cut_tokens"] > 0
    assert ours["lost_bonus_tokens"] > 0
