"""The anthropic SDK against the demo model on a real port."""

from __future__ import annotations

import pytest
from anthropic import Anthropic, BadRequestError

pytestmark = pytest.mark.slow

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def client(demo_gateway) -> Anthropic:
    return Anthropic(base_url=demo_gateway.url, api_key="none", max_retries=0)


def ask(text: str, **fields) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": "demo", "messages": messages, "max_tokens": 120} | fields


def test_thinking_and_text(client):
    fields = ask("What is 84 - 37?", extra_body={"temperature": 0})
    whole = client.messages.create(**fields)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert "47" in whole.content[1].text
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == whole.content[1].text
    assert streamed.content[0].thinking == whole.content[0].thinking
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    quiet = client.messages.create(**fields, thinking={"type": "disabled"})
    assert [block.type for block in quiet.content] == ["text"]


def test_a_tool_is_used_and_its_result_read(client):
    fields = ask("What is the weather in Oslo?", tools=[WEATHER], extra_body={"temperature": 0})
    used = client.messages.create(**fields)
    assert used.stop_reason == "tool_use"
    call = used.content[-1]
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [
        *fields["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in used.content]},
        {"role": "user", "content": [result]},
    ]
    answered = client.messages.create(**fields | {"messages": turns})
    assert answered.stop_reason in ("end_turn", "tool_use")
    assert answered.usage.input_tokens + answered.usage.cache_read_input_tokens > (
        used.usage.input_tokens
    )


def test_a_forced_tool(client):
    fields = ask("Hi", tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"})
    assert client.messages.create(**fields).content[-1].name == "get_weather"


def test_counting_limits_and_errors(client):
    counted = client.messages.count_tokens(model="demo", messages=ask("Hi there")["messages"])
    made = client.messages.create(**ask("Hi there", max_tokens=2))
    usage = made.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert made.stop_reason == "max_tokens"
    hosted = ask("Hi", tools=[{"type": "web_search_20250305", "name": "web_search"}])
    answer = client.messages.with_raw_response.create(**hosted)
    assert answer.headers["x-eaglegate-ignored-fields"] == "tools[web_search_20250305]"
    with pytest.raises(BadRequestError, match="tool_choice"):
        client.messages.create(**hosted, tool_choice={"type": "tool", "name": "web_search"})
