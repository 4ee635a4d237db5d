"""Tool calls through the whole stack at every depth: streamed, whole, and without speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.conftest import serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROMPTS = [
    prompt
    for line in (Path(__file__).parent / "prompts.jsonl").read_text("utf-8").splitlines()
    if "tools" in (prompt := json.loads(line))
]
DEEPEST = 7


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[OpenAI]:
    """The demo model with its EAGLE 3.1 draft, at a depth that requests may lower."""
    draft = {
        "method": "eagle3",
        "model": str(ROOT / "engine/demo/eagle3_1"),
        "num_speculative_tokens": DEEPEST,
    }
    arguments = ["--speculative-config", json.dumps(draft)]
    with serving(tmp_path_factory.mktemp("deep") / "serve.log", arguments) as gateway:
        yield OpenAI(base_url=f"{gateway.url}/v1", api_key="none")


def ask(client: OpenAI, prompt: dict, depth: int, stream: bool):
    return client.chat.completions.create(
        model="demo",
        messages=prompt["messages"],
        tools=prompt["tools"],
        temperature=0,
        max_tokens=160,
        stream=stream,
        extra_body={"num_speculative_tokens": depth},
    )


def whole(client: OpenAI, prompt: dict, depth: int) -> tuple:
    choice = ask(client, prompt, depth, stream=False).choices[0]
    calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
    return choice.message.content or "", calls, choice.finish_reason


def streamed(client: OpenAI, prompt: dict, depth: int) -> tuple:
    """The joined chunks; each call's id and name come once, and no piece is empty."""
    content, calls, finish = "", [], None
    for chunk in ask(client, prompt, depth, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                if call.id:
                    assert call.index == len(calls)
                    calls.append((call.function.name, ""))
                else:
                    assert call.function.name is None
                    assert call.function.arguments
                name, arguments = calls[call.index]
                calls[call.index] = (name, arguments + (call.function.arguments or ""))
    return content, calls, finish


def test_streamed_calls_are_the_whole_ones_at_every_depth(client):
    """Each prompt at two depths, whole and streamed, against its whole answer without drafts."""
    called = 0
    for at, prompt in enumerate(PROMPTS):
        plain = whole(client, prompt, 0)
        called += len(plain[1])
        assert whole(client, prompt, 1 + at % DEEPEST) == plain, prompt["name"]
        assert streamed(client, prompt, 1 + (at + 3) % DEEPEST) == plain, prompt["name"]
    assert called > len(PROMPTS) / 2
