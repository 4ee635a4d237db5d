"""Chat messages as chat templates expect them: text content, parsed arguments."""

from __future__ import annotations

from typing import Any

import orjson

from server.errors import InvalidRequest
from server.protocol.chat import Message, TextPart

RAW = "raw_arguments"
"""Where text that is no JSON object stands; the messages API delivers it under the same name."""


def template_message(message: Message, at: int) -> dict[str, Any]:
    out = message.model_dump(exclude_none=True)
    out["role"] = "system" if message.role == "developer" else message.role
    if isinstance(message.content, list):
        out["content"] = "".join(
            _part_text(part, f"messages[{at}].content[{i}]")
            for i, part in enumerate(message.content)
        )
    elif message.content is None and message.role == "assistant":
        out["content"] = ""
    for call in out.get("tool_calls", ()):
        call["function"]["arguments"] = parsed_arguments(call["function"]["arguments"])
    return out


def _part_text(part: Any, path: str) -> str:
    if isinstance(part, TextPart):
        return part.text
    if text := getattr(part, "refusal", None):
        return str(text)
    raise InvalidRequest(
        f"'{path}' has type '{part.type}'; this model reads text only.", param=path
    )


def parsed_arguments(text: str) -> dict[str, Any]:
    """Templates iterate over arguments, so they get an object; the model wrote it as text.

    What it wrote badly stays in the history for good: it is shown to the model as it was, in an
    object of its own, for a refusal here would end every turn that follows.
    """
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {RAW: text}
