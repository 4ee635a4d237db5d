"""The openai Python SDK against the demo model on a real port."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from openai import BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
from pydantic import BaseModel

pytestmark = pytest.mark.slow


class GetWeather(BaseModel):
    """Get the weather."""

    city: str


class Sum(BaseModel):
    answer: int
    sure: Literal["yes", "no"]


@pytest.fixture(scope="module")
def client(demo_gateway) -> OpenAI:
    return OpenAI(base_url=f"{demo_gateway.url}/v1", api_key="none", max_retries=0)


def ask(text: str, **fields) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 120} | fields


def test_parse_holds_the_model_to_the_schema(client):
    fields = ask("What is 84 - 37?", response_format=Sum)
    answer = client.chat.completions.parse(**fields).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.parsed.sure in ("yes", "no")
    with client.chat.completions.stream(**fields) as stream:
        stream.until_done()
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert streamed == answer.message.parsed
    response = client.responses.parse(
        model="demo", input="What is 84 - 37?", temperature=0, text_format=Sum
    )
    assert response.output_parsed.sure in ("yes", "no")


def test_reasoning_stays_free_before_the_schema(client):
    fields = ask("What is 84 - 37?", response_format=Sum)
    thought = client.chat.completions.parse(**fields).choices[0].message
    assert thought.reasoning
    quiet = {"chat_template_kwargs": {"enable_thinking": False}}
    unthought = client.chat.completions.parse(**fields, extra_body=quiet).choices[0].message
    assert not getattr(unthought, "reasoning", None)
    assert unthought.parsed.sure in ("yes", "no")


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "GetWeather"}}],
    ids=["required", "named"],
)
def test_forced_calls_are_valid_whatever_is_asked(client, choice):
    tools = [pydantic_function_tool(GetWeather)]
    for text in ("What is EAGLE 3.1?", "Hi", "What is 84 - 37?"):
        fields = ask(text, tools=tools, tool_choice=choice, parallel_tool_calls=False)
        answer = client.chat.completions.parse(**fields).choices[0]
        (call,) = answer.message.tool_calls
        assert isinstance(call.function.parsed_arguments, GetWeather)
        assert answer.finish_reason == "tool_calls"
        plain = client.chat.completions.create(
            **fields, extra_body={"num_speculative_tokens": 0}
        ).choices[0]
        assert plain.message.tool_calls[0].function.arguments == call.function.arguments


def test_a_custom_tool_gets_text(client):
    tool = {"type": "custom", "custom": {"name": "run_python", "description": "Runs Python."}}
    named = {"type": "custom", "custom": {"name": "run_python"}}
    fields = ask("What is EAGLE 3.1?", tools=[tool], tool_choice=named)
    answer = client.chat.completions.create(**fields).choices[0]
    (call,) = answer.message.tool_calls
    assert (call.type, call.custom.name) == ("custom", "run_python")
    deltas = [
        delta.custom["input"]
        for chunk in client.chat.completions.create(**fields, stream=True)
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]
    assert "".join(deltas) == call.custom.input
    asked = {"model": "demo", "input": "What is EAGLE 3.1?", "temperature": 0}
    flat = {"type": "custom", "name": "run_python"}
    offered = flat | {"description": "Runs Python."}
    made = client.responses.create(**asked, tools=[offered], tool_choice=flat)
    (item,) = [item for item in made.output if item.type == "custom_tool_call"]
    assert item.input == call.custom.input


def test_speculation_goes_on_under_a_grammar(client):
    fields = ask("What is 84 - 37?", response_format={"type": "json_object"}, max_tokens=40)
    metrics = {"per_request_spec_decode_metrics": "summary"}
    found = client.chat.completions.create(**fields, extra_body=metrics).metrics
    assert found["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    (*_, last) = client.chat.completions.create(**fields, extra_body=metrics, stream=True)
    assert last.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0


def test_constraints_of_vllm(client):
    def content(**body) -> str:
        fields = ask("Is it?", extra_body=body)
        return client.chat.completions.create(**fields).choices[0].message.content

    assert content(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert content(guided_regex="[0-9]{3}").isdecimal()
    assert content(structured_outputs={"grammar": 'root ::= "a" | "b"'}) in ("a", "b")
    with pytest.raises(BadRequestError, match="grammar"):
        content(structured_outputs={"regex": "[unclosed"})


def test_responses_go_on_and_are_kept(client):
    fields = {"model": "demo", "temperature": 0, "max_output_tokens": 100}
    first = client.responses.create(input="What is 84 - 37?", **fields)
    assert "47" in first.output_text
    with client.responses.stream(input="What is 84 - 37?", **fields) as stream:
        numbers = [event.sequence_number for event in stream]
        assert stream.get_final_response().output_text == first.output_text
    assert numbers == list(range(len(numbers)))
    second = client.responses.create(input="And 3 + 4?", previous_response_id=first.id, **fields)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        client.responses.create(input="x", previous_response_id=first.id, **fields)
    tool = {
        "type": "function",
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
    called = client.responses.create(input="What is the weather in Oslo?", tools=[tool], **fields)
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Oslo"}
