"""The origin of every token on a real engine, over the API."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import httpx
import orjson
import pytest

from tests.conftest import RunningGateway
from tests.streams import read_frames

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DEPTHS = (1, 3, None)
ANSWERS, AT_ONCE, TOKENS = 12, 8, 32
PROMPTS = [
    "What is the weather in Paris?",
    "Write three words.",
    "Why is the sky blue?",
    "Count from 1 to 30.",
    "Schreibe einen Satz über grüne Äpfel.",
]
COUNTERS = re.compile(r"^vllm:spec_decode_num_(draft|accepted)_tokens_total\{[^}]*\} (\S+)$", re.M)


def make_body(at: int, depth: int | None) -> tuple[str, dict[str, Any]]:
    """One of the two styles, OpenAI's and Anthropic's, streamed or whole."""
    said = f"{PROMPTS[at % len(PROMPTS)]} ({at})"
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": said}],
        "max_tokens": TOKENS,
        "temperature": 0 if at % 3 else 0.8,
        "return_steps": True,
        "per_request_spec_decode_metrics": "detailed",
        "stream": at % 4 >= 2,
    }
    if depth is not None:
        body["num_speculative_tokens"] = depth
    if at % 2:
        return "/v1/messages", body
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    return "/v1/chat/completions", body


def read_answer(url: str, body: dict[str, Any], text: str) -> tuple[list, dict, int]:
    """Steps, vLLM's own report on the request's speculation, and the number of tokens."""
    if not body["stream"]:
        said = orjson.loads(text)
        steps = said["steps"] if url == "/v1/messages" else said["choices"][0]["steps"]
        frames = [said]
    else:
        frames = read_frames(text)
        choices = [choice for frame in frames for choice in frame.get("choices", [frame])]
        steps = [step for choice in choices for step in choice.get("steps", ())]
    metrics = next(frame["metrics"] for frame in reversed(frames) if "metrics" in frame)
    usage = next(frame["usage"] for frame in reversed(frames) if frame.get("usage"))
    tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return steps, metrics["speculative_decoding"], tokens


def check_answer(steps: list, report: dict, tokens: int) -> None:
    verified = [step for step in steps if step["drafted"]]
    assert [step["drafted"] for step in verified] == report["per_step_drafted"]
    assert [step["accepted"] for step in verified] == report["per_step_accepted"]
    shown = [token for step in steps for token in step["tokens"]]
    assert len(shown) == tokens
    drafts = [token["draft_position"] for token in shown if token["draft_position"]]
    assert len(drafts) == report["num_accepted_draft_tokens"]
    at = [drafts.count(position + 1) for position in range(max(drafts, default=0))]
    histogram = report["acceptance_histogram"]
    assert at == [sum(histogram[position + 1 :]) for position in range(len(at))]
    for step in verified:
        lost = [token["draft_position"] for token in step["rejected"]]
        assert lost == list(range(step["accepted"] + step["cut"] + 1, step["drafted"] + 1))
        assert all(token["text"] is not None for token in step["rejected"])
        own = step["tokens"][-1]
        if step["rejected"] and own["draft_position"] is None:
            assert step["rejected"][0]["id"] != own["id"]
    assert all(step["ms"] >= 0 for step in steps)
    assert steps[0]["kind"] == "prefill" and steps[0]["index"] == 0


def count_drafts(gateway: RunningGateway) -> dict[str, float]:
    page = httpx.get(gateway.url + "/metrics").text
    return {name: float(value) for name, value in COUNTERS.findall(page)}


@pytest.mark.parametrize("depth", DEPTHS)
async def test_the_origins_of_answers_equal_the_engines_accounts(demo_gateway, depth):
    gateway = demo_gateway
    before, found = count_drafts(gateway), []
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120) as client:

        async def ask(at: int) -> None:
            url, body = make_body(at, depth)
            async with places:
                answer = await client.post(url, json=body)
            found.append(read_answer(url, body, answer.text))

        await asyncio.gather(*map(ask, range(ANSWERS)))
    for answer in found:
        check_answer(*answer)
    steps = list(itertools.chain.from_iterable(steps for steps, _, _ in found))
    after = count_drafts(gateway)
    drafted = sum(step["drafted"] for step in steps)
    accepted = sum(step["accepted"] + step["cut"] for step in steps)
    assert after["draft"] - before["draft"] == drafted
    assert after["accepted"] - before["accepted"] == accepted
    planned = {step["planned"] for step in steps if "planned" in step}
    rates = [step["rates"] for step in steps if "rates" in step]
    assert all(len(row) == max(DEPTHS[:-1]) + 1 and max(row) > 0 for row in rates)
    assert bool(rates) == bool(planned)
    if depth is None:
        assert planned
    else:
        assert planned == set()
        assert max(step["drafted"] for step in steps) == depth


def test_steps_do_not_change_the_text(demo_gateway):
    body = {"messages": [{"role": "user", "content": PROMPTS[2]}], "max_tokens": 64}
    body |= {"temperature": 0}
    answers = [
        httpx.post(demo_gateway.url + "/v1/chat/completions", json=body | asked, timeout=60).json()
        for asked in (
            {},
            {"return_steps": True},
            {"return_steps": True, "num_speculative_tokens": 0},
        )
    ]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    plain = answers[2]["choices"][0]["steps"]
    assert {step["kind"] for step in plain[1:]} == {"plain"}
    assert {step["reason"] for step in plain[1:]} == {"off"}
