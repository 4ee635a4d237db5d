"""Streams of the four APIs: their frames, and the answers that clients make of them.

``fold_chat`` makes of a stream what ``read_chat`` makes of the answer that is not streamed, and so
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson


def read_frames(body: bytes | str) -> list[dict[str, Any]]:
    """Return the JSON of every frame, without comments and the closing ``[DONE]``."""
    text = body.decode() if isinstance(body, bytes) else body
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [orjson.loads(line.removeprefix("data: ")) for line in lines]


def fold_chat(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fold the chunks of one choice."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    ends: dict[str, Any] = {"usage": None, "finish_reason": None}
    for chunk in chunks:
        ends["usage"] = chunk.get("usage") or ends["usage"]
        for choice in chunk.get("choices", ()):
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["calls"].append([call["function"]["name"], ""])
                message["calls"][call["index"]][1] += call["function"]["arguments"]
            ends["finish_reason"] = choice["finish_reason"] or ends["finish_reason"]
    return message | ends


def read_chat(body: dict[str, Any]) -> dict[str, Any]:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "calls": [[call["name"], call["arguments"]] for call in calls],
        "usage": body["usage"],
        "finish_reason": choice["finish_reason"],
    }


def fold_completion(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return {
        "text": "".join(choice["text"] for choice in choices),
        "finish_reason": choices[-1]["finish_reason"],
        "usage": chunks[-1]["usage"],
    }


def read_completion(body: dict[str, Any]) -> dict[str, Any]:
    (choice,) = body["choices"]
    return {
        "text": choice["text"],
        "finish_reason": choice["finish_reason"],
        "usage": body["usage"],
    }


def fold_response(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fold the deltas into texts, beside the response in the last event."""
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            texts[index] = texts.get(index, "") + event["delta"]
    return {"texts": texts, **drop_ids(events[-1]["response"])}


def read_response(body: dict[str, Any]) -> dict[str, Any]:
    texts = {}
    for index, item in enumerate(body["output"]):
        text = item["arguments"] if "arguments" in item else _join_parts(item)
        if text:
            texts[index] = text
    return {"texts": texts, **drop_ids(body)}


def _join_parts(item: dict[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


def drop_ids(body: dict[str, Any]) -> dict[str, Any]:
    drop = ("id", "call_id", "created_at", "completed_at", "store")
    rest = {key: value for key, value in body.items() if key not in drop}
    items = [{k: v for k, v in item.items() if k not in drop} for item in rest["output"]]
    return rest | {"output": items}


def fold_message(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
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
    return {"blocks": [[kind, _read_input(kind, text), sign] for kind, text, sign in blocks]} | end


def _read_input(kind: str, text: str) -> Any:
    if kind != "tool_use":
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw_arguments": text}


def read_message(body: dict[str, Any]) -> dict[str, Any]:
    members = {"text": "text", "thinking": "thinking", "tool_use": "input"}
    blocks = [
        [block["type"], block[members[block["type"]]], block.get("signature", "")]
        for block in body["content"]
    ]
    end = {name: body[name] for name in ("stop_reason", "stop_sequence")}
    return {"blocks": blocks} | end | body["usage"]
