"""A user's first day: the demo model on real vLLM, by SDK and by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

pytestmark = pytest.mark.slow

PROMPTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "prompts.jsonl").read_text("utf-8").splitlines()
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(demo_gateway) -> OpenAI:
    return OpenAI(base_url=f"{demo_gateway.url}/v1", api_key="none")


def ask(client: OpenAI, prompt: dict, **fields):
    """A greedy request; ``name`` is the prompt's own, all else goes to the API."""
    asked = {key: value for key, value in prompt.items() if key not in ("name", "tools")}
    extra = {key: asked.pop(key) for key in ("chat_template_kwargs",) if key in asked}
    fields["extra_body"] = extra | fields.get("extra_body", {})
    limits = {"temperature": 0, "max_tokens": 160}
    return client.chat.completions.create(model="demo", **(limits | asked | fields))


def text_of(answer) -> tuple:
    (choice,) = answer.choices
    message = choice.message
    calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning", None) or ""
    return message.content or "", reasoning, calls, choice.finish_reason


def streamed(client: OpenAI, prompt: dict, **fields) -> tuple:
    """The joined chunks; each call's id and name come once, and no piece is empty."""
    content, reasoning, calls, finish = "", "", [], None
    for chunk in ask(client, prompt, stream=True, **fields):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
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
    return content, reasoning, calls, finish


def test_the_banner_says_which_speculation_and_why(demo_gateway):
    assert "EAGLE 3.1" in demo_gateway.banner
    assert "fc_norm" in demo_gateway.banner
    assert "norm_output" in demo_gateway.banner
    assert f"{demo_gateway.url}/metrics" in demo_gateway.banner


@pytest.mark.parametrize("prompt", PROMPTS, ids=[p["name"] for p in PROMPTS])
def test_streamed_is_whole_is_without_speculation(client, prompt):
    """Whole at planned depths, streamed at one of the three depths, and without drafts."""
    tools = {"tools": prompt["tools"]} if "tools" in prompt else {}
    fixed = {"num_speculative_tokens": 1 + PROMPTS.index(prompt) % 3}
    whole = text_of(ask(client, prompt, **tools))
    assert streamed(client, prompt, extra_body=fixed, **tools) == whole
    assert whole[2] or not prompt["name"].startswith("tool_call")
    plain = ask(client, prompt, extra_body={"num_speculative_tokens": 0}, **tools)
    assert text_of(plain) == whole


def test_a_tool_call_has_name_id_and_arguments(client):
    prompt = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}
    choice = ask(client, prompt, tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.id
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}


def test_acceptance_is_on_the_metrics_page(demo_gateway, client):
    ask(client, {"messages": [{"role": "user", "content": "What is 84 - 37?"}]})
    assert demo_gateway.metric("eaglegate_acceptance_length") > 1.5
    assert demo_gateway.metric("vllm:spec_decode_num_drafts_total") > 0


def test_usage_and_stop(client):
    prompt = {"messages": [{"role": "user", "content": "What is EAGLE 3.1?"}]}
    full = ask(client, prompt)
    word = full.choices[0].message.content.split()[3]
    cut = ask(client, prompt, stop=[word])
    assert word not in cut.choices[0].message.content
    assert cut.choices[0].finish_reason == "stop"
    assert 0 < cut.usage.completion_tokens < full.usage.completion_tokens
    short = ask(client, prompt, max_tokens=4)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 4


def test_seeds_repeat(client):
    prompt = {"messages": [{"role": "user", "content": "Tell me a story."}]}
    fields = {"temperature": 1.5, "seed": 11, "max_tokens": 40}

    def once():
        return text_of(
            client.chat.completions.create(model="demo", messages=prompt["messages"], **fields)
        )

    assert once() == once()


def test_errors_are_the_sdk_s_own(client):
    with pytest.raises(NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(BadRequestError, match="max_tokens"):
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "x"}], max_tokens=-1
        )


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_engine(demo_gateway, stream):
    body = {
        "model": "demo",
        "stream": stream,
        "max_tokens": 3000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me a story."}],
    }
    url = f"{demo_gateway.url}/v1/chat/completions"
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", url, json=body, timeout=httpx.Timeout(10, read=1.0)) as answer,
    ):
        for _ in answer.iter_bytes():
            if stream:
                raise httpx.ReadTimeout("enough was read")
    deadline = time.monotonic() + 5
    while demo_gateway.metric("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert demo_gateway.metric("vllm:num_requests_running") == 0


def test_ready_and_models(demo_gateway):
    ready = httpx.get(f"{demo_gateway.url}/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    models = httpx.get(f"{demo_gateway.url}/v1/models").json()["data"]
    assert models[0]["id"] == "demo"
