"""fold(stream) == the answer that is not streamed, for every API and any cut of any output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.thorough

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
PIECES = [
    "<think>", "</think>", "\n", "hm ", "Let me look.", CALL, CALL[:40], "<tool_call>", "grün ✓ ",
    "<tool", ' {"a": 1} ', "</tool_call>", "\n\n",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
cuts = st.lists(st.integers(1, 6), max_size=20)
limits = st.sampled_from([None, 1, 7, 100])
stops = st.sampled_from([None, ["look"], ["</tool_call>"], ["\n\n", "hm"]])


def frames(body: bytes) -> list[dict[str, Any]]:
    found = [frame.rpartition(b"data: ")[2] for frame in body.split(b"\n\n") if frame]
    return [orjson.loads(data) for data in found if data != b"[DONE]"]


def chat(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    ends: dict[str, Any] = {}
    for chunk in chunks:
        ends["usage"] = chunk["usage"] or ends.get("usage")
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["calls"].append([call["function"]["name"], ""])
                message["calls"][call["index"]][1] += call["function"]["arguments"]
            ends["finish"] = choice["finish_reason"]
    return message | ends


def whole_chat(body: dict[str, Any]) -> dict[str, Any]:
    choice = body["choices"][0]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "calls": [[call["name"], call["arguments"]] for call in calls],
        "usage": body["usage"],
        "finish": choice["finish_reason"],
    }


def completion(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    finish = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1]
    return {"text": text, "finish": finish, "usage": chunks[-1]["usage"]}


def whole_completion(body: dict[str, Any]) -> dict[str, Any]:
    choice = body["choices"][0]
    return {
        "text": choice["text"],
        "finish": choice["finish_reason"],
        "usage": body["usage"],
    }


def response(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The text of the deltas alone, beside the response in the last event."""
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            at = event["output_index"]
            texts[at] = texts.get(at, "") + event["delta"]
    return {"texts": texts, **without_ids(events[-1]["response"])}


def whole_response(body: dict[str, Any]) -> dict[str, Any]:
    texts = {}
    for at, item in enumerate(body["output"]):
        text = item["arguments"] if "arguments" in item else _part_text(item)
        if text:
            texts[at] = text
    return {"texts": texts, **without_ids(body)}


def _part_text(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    drop = ("id", "call_id", "created_at", "completed_at", "store")
    out = {key: value for key, value in body.items() if key not in drop}
    return out | {"output": [{k: v for k, v in i.items() if k not in drop} for i in out["output"]]}


def message(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    blocks: list[Any] = []
    end: dict[str, Any] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append([event["content_block"]["type"], "", ""])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            assert event["index"] == len(blocks) - 1
            part = 2 if delta["type"] == "signature_delta" else 1
            blocks[-1][part] += next(v for k, v in delta.items() if k != "type")
        elif event["type"] == "message_delta":
            end = event["delta"] | event["usage"]
    return {"blocks": [[kind, _input(kind, text), sign] for kind, text, sign in blocks]} | end


def _input(kind: str, text: str) -> Any:
    if kind != "tool_use":
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw_arguments": text}


def whole_message(body: dict[str, Any]) -> dict[str, Any]:
    members = {"text": "text", "thinking": "thinking", "tool_use": "input"}
    blocks = [
        [block["type"], block[members[block["type"]]], block.get("signature", "")]
        for block in body["content"]
    ]
    end = {name: body[name] for name in ("stop_reason", "stop_sequence")}
    return {"blocks": blocks} | end | body["usage"]


USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": FUNCTION}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
APIS = {
    "chat": ("/v1/chat/completions", {"messages": USER, "tools": [TOOL]}, USAGE, chat, whole_chat),
    "completions": ("/v1/completions", {"prompt": "hi"}, USAGE, completion, whole_completion),
    "responses": (
        "/v1/responses",
        {"input": "hi", "tools": [FUNCTION | {"type": "function"}], "store": False},
        {"stream": True},
        response,
        whole_response,
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": USER,
            "max_tokens": 200,
            "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        },
        {"stream": True},
        message,
        whole_message,
    ),
}
LIMITS = {"responses": "max_output_tokens"}
STOPS = {"chat": "stop", "completions": "stop", "messages": "stop_sequences"}


@pytest.mark.parametrize("api", APIS)
@settings(
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=texts, cut=cuts, limit=limits, stop=stops)
def test_the_stream_folds_to_the_answer(lab, api, text, cut, limit, stop):
    url, fields, streaming, fold, whole = APIS[api]
    asked = {"model": "demo", **fields}
    if limit is not None:
        asked[LIMITS.get(api, "max_tokens")] = limit
    if stop is not None and api in STOPS:
        asked[STOPS[api]] = stop
    lab.says(text, cut)

    async def both() -> tuple[Any, Any]:
        return await lab.post(url, asked), await lab.post(url, asked | streaming)

    answer, stream = asyncio.run(both())
    assert answer.status == stream.status == 200
    assert fold(frames(stream.body)) == whole(answer.json)
