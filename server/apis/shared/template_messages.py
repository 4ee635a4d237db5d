"""Chat messages as chat templates expect them: text content, parsed arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from server.apis.chat.request import ChatMessage, TextPart
from server.apis.shared.template import MediaPolicy, is_newest, join
from server.parsing.free_text import ARGUMENT

OTHER_TEXT = ("input_text", "output_text")
"""Types of parts that other APIs give to text."""
RAW = "raw_arguments"
"""Where text that is no JSON object stands; the messages API delivers it under the same name."""


def template_messages(messages: Sequence[ChatMessage], replaces: bool) -> list[dict[str, Any]]:
    """``replaces``: a placeholder stands for what is no text. Raises InvalidRequest."""
    newest = is_newest([message.role for message in messages])
    return [
        _message(message, at, MediaPolicy(replaces and not newest[at]))
        for at, message in enumerate(messages)
    ]


def _message(message: ChatMessage, at: int, media: MediaPolicy) -> dict[str, Any]:
    out = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        texts = (
            _part_text(part, f"messages[{at}].content[{i}]", media)
            for i, part in enumerate(message.content)
        )
        out["content"] = join(list(texts))
    elif message.content is None:
        out["content"] = ""
    if "tool_calls" in out:
        out["tool_calls"] = [_call_message(call) for call in out["tool_calls"]]
    return out


def _call_message(call: dict[str, Any]) -> dict[str, Any]:
    if call["type"] == "custom":
        return custom_call(call["id"], call["custom"]["name"], call["custom"]["input"])
    function = call["function"]
    return call | {"function": function | {"arguments": parse_arguments(function.get("arguments"))}}


def custom_call(id: str, name: str, text: str) -> dict[str, Any]:
    """A call of a custom tool as the function it was offered as."""
    function = {"name": name, "arguments": {ARGUMENT: text}}
    return {"id": id, "type": "function", "function": function}


def _part_text(part: Any, path: str, media: MediaPolicy) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, TextPart):
        return part.text
    text = getattr(part, "refusal", None)
    if part.type in OTHER_TEXT:
        text = getattr(part, "text", None)
    return text if isinstance(text, str) else media.text(part.type, path)


def parse_arguments(text: str | dict[str, Any] | None) -> dict[str, Any]:
    """Templates iterate over arguments, so they get an object; the model wrote it as text.

    What it wrote badly stays in the history for good: it is shown to the model as it was, in an
    object of its own, for a refusal here would end every turn that follows.
    """
    if isinstance(text, dict):
        return text
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {RAW: text}
