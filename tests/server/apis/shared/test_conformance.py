"""Every answer of the OpenAI endpoints against the schemas OpenAI publishes.

The schemas are an extract made by scripts/openai_schema.py. Two things OpenAI's own server does are
not in them: ``usage: null`` in chunks before the last one, and null for what is not known yet.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import openai.types.responses
import orjson
import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from eaglegate.engine.errors import EngineDead

pytestmark = pytest.mark.thorough

SCHEMAS = json.loads((Path(__file__).parent / "openai_schema.json").read_text("utf-8"))
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
CUSTOM = {"type": "custom", "custom": {"name": "get_weather"}}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": None}

ANSWERS = {
    "text": "It rains.",
    "thought": THOUGHT + "It rains.",
    "call": CALL,
    "all": f"{THOUGHT}Let me look.\n{CALL}\n{CALL}",
    "empty": "",
}
CHAT: list[dict[str, Any]] = [
    {},
    {"tools": [WEATHER]},
    {"n": 2},
    {"max_tokens": 2},
    {"stop": ["rain"]},
    {"response_format": {"type": "json_object"}},
    {"service_tier": "auto", "metadata": {"a": "b"}, "user": "u"},
    {"reasoning_effort": "none", "verbosity": "low"},
    {"per_request_spec_decode_metrics": "detailed", "return_token_ids": True},
]
COMPLETIONS: list[dict[str, Any]] = [{}, {"n": 2}, {"echo": True}, {"prompt": ["a", "b"]}]
RESPONSES: list[dict[str, Any]] = [
    {},
    {"tools": [FUNCTION]},
    {"max_output_tokens": 2},
    {"instructions": "be brief", "metadata": {"a": "b"}, "reasoning": {"effort": "low"}},
    {"text": {"format": {"type": "json_object"}, "verbosity": "low"}, "truncation": "auto"},
    {"store": False, "parallel_tool_calls": False, "max_output_tokens": 50},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "get_weather"}},
    {"tools": [{"type": "custom", "name": "get_weather", "description": "Tells."}]},
    {"include": ["reasoning.encrypted_content"]},
    {"tools": [FUNCTION, {"type": "web_search"}]},
]


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS | {"$ref": f"#/components/schemas/{name}"})


def check(body: Any, name: str) -> None:
    found = sorted(validator(name).iter_errors(body), key=lambda error: error.path)
    assert not found, f"{found[0].json_path}: {found[0].message[:300]}"


def known(chunk: dict[str, Any]) -> dict[str, Any]:
    """A chunk without the nulls that stand for values not known yet."""
    out = {key: value for key, value in chunk.items() if not (key == "usage" and value is None)}
    for choice in out["choices"]:
        if choice["finish_reason"] is None and "text" in choice:
            choice["finish_reason"] = "stop"
    return out


@pytest.mark.parametrize("says", ANSWERS)
@pytest.mark.parametrize("fields", CHAT, ids=lambda fields: "-".join(fields) or "plain")
async def test_chat_completions(lab, says, fields):
    lab.says(ANSWERS[says], [1, 2, 1, 3])
    check((await lab.chat(**fields)).json, "CreateChatCompletionResponse")
    streamed = await lab.chat(**fields, stream=True, stream_options={"include_usage": True})
    assert streamed.done
    for chunk in streamed.chunks:
        check(known(chunk), "CreateChatCompletionStreamResponse")


async def test_calls_of_custom_tools(lab):
    """Whole answers only: the document has no chunk for them."""
    lab.says(ANSWERS["all"], [1, 2, 1, 3])
    check((await lab.chat(tools=[CUSTOM])).json, "CreateChatCompletionResponse")


@pytest.mark.parametrize("says", ["text", "empty"])
@pytest.mark.parametrize("fields", COMPLETIONS, ids=lambda fields: "-".join(fields) or "plain")
async def test_completions(lab, says, fields):
    lab.says(ANSWERS[says], [1, 2])
    body = {"model": "demo", "prompt": "hi"} | fields
    check((await lab.post("/v1/completions", body)).json, "CreateCompletionResponse")
    streamed = await lab.post("/v1/completions", body | {"stream": True})
    for chunk in streamed.chunks:
        check(known(chunk), "CreateCompletionResponse")


@pytest.mark.parametrize("says", ANSWERS)
@pytest.mark.parametrize("fields", RESPONSES, ids=lambda fields: "-".join(fields) or "plain")
async def test_responses(lab, says, fields):
    lab.says(ANSWERS[says], [1, 2, 1, 3])
    body = {"model": "demo", "input": "hi"} | fields
    made = (await lab.post("/v1/responses", body)).json
    check(made, "Response")
    check_events((await lab.post("/v1/responses", body | {"stream": True})).body)
    if made["store"]:
        check((await lab.get(f"/v1/responses/{made['id']}")).json, "Response")
        items = (await lab.get(f"/v1/responses/{made['id']}/input_items")).json
        check(items, "ResponseItemList")
        check_events((await lab.post("/v1/responses", body | BACKGROUND)).body)


BACKGROUND = {"background": True, "stream": True}


def check_events(body: bytes) -> None:
    for frame in body.decode().strip().split("\n\n"):
        event = orjson.loads(frame.split("\ndata: ")[1])
        schema = validator("ResponseStreamEvent")
        branches = schema.schema["components"]["schemas"]["ResponseStreamEvent"]["anyOf"]
        names = [branch["$ref"].rsplit("/", 1)[1] for branch in branches]
        (name,) = [name for name in names if _type_of(name) == event["type"]]
        if event.get("response", {}).get("usage", 0) is None:
            del event["response"]["usage"]
        check(event, name)


def _type_of(name: str) -> str:
    return str(SCHEMAS["components"]["schemas"][name]["properties"]["type"]["enum"][0])


NEWER = {
    "model": "demo",
    "input": "hi",
    "reasoning": {"summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "tools": [{"type": "namespace", "name": "sky", "description": "Of it.", "tools": [FUNCTION]}],
}


async def test_summaries_and_namespaces_have_the_types_of_the_sdk(lab):
    """Summaries and namespaces, by the types of OpenAI's own SDK."""
    lab.says(THOUGHT + CALL.replace("get_weather", "sky__get_weather"), [1, 2, 1, 3])
    made = openai.types.responses.Response.model_validate(
        (await lab.post("/v1/responses", NEWER)).json
    )
    assert [type(item).__name__ for item in made.output] == [
        "ResponseReasoningItem",
        "ResponseFunctionToolCall",
    ]
    assert type(made.tools[0]).__name__ == "NamespaceTool"
    known = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    body = (await lab.post("/v1/responses", NEWER | {"stream": True})).body
    for frame in body.decode().strip().split("\n\n"):
        event = orjson.loads(frame.split("\ndata: ")[1])
        assert known.validate_python(event).type == event["type"]


async def test_log_probabilities(lab):
    lab.says_with_logprobs(THOUGHT + "grün")
    fields = {"logprobs": True, "top_logprobs": 2}
    check((await lab.chat(**fields)).json, "CreateChatCompletionResponse")
    for chunk in (await lab.chat(**fields, stream=True)).chunks:
        check(known(chunk), "CreateChatCompletionStreamResponse")
    body = {"model": "demo", "input": "hi", "include": ["message.output_text.logprobs"]}
    check((await lab.post("/v1/responses", body)).json, "Response")
    check_events((await lab.post("/v1/responses", body | {"stream": True})).body)
    body = {"model": "demo", "prompt": "hi", "logprobs": 2}
    check((await lab.post("/v1/completions", body)).json, "CreateCompletionResponse")


async def test_models(lab):
    check((await lab.get("/v1/models")).json, "ListModelsResponse")
    check((await lab.get("/v1/models/alias")).json, "Model")


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"model": "nope"}', b"\xff"])
async def test_errors(lab, url, body):
    check((await lab.post(url, body)).json, "ErrorResponse")


async def test_errors_in_mid_stream(lab):
    lab.says("one two three", [1, 1])
    lab.engine.script = [*lab.engine.script[:2], EngineDead("gone")]
    check((await lab.chat(stream=True)).chunks[-1], "ErrorResponse")
    body = {"model": "demo", "input": "hi", "stream": True}
    check_events((await lab.post("/v1/responses", body)).body)
    lab.engine.script = [EngineDead("gone")]
    check((await lab.post("/v1/responses", body)).json, "ErrorResponse")
