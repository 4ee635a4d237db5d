"""Fields that users of the OpenAI SDK send. Driven by test_python_sdks.py.

python openai_fields.py fields|reasoning URL [stream]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from openai import OpenAI

KIND, URL, *STREAM = sys.argv[1:]
CLIENT = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Weather of a city.", "parameters": PARAMETERS}


def fields() -> dict[str, Any]:
    """Send, in one request, fields that other servers take."""
    tool = {"type": "function", "function": FUNCTION, "cache_control": {"type": "ephemeral"}}
    raw = CLIENT.chat.completions.with_raw_response.create(
        model="demo",
        messages=[{"role": "user", "content": "play:thanks Thanks."}],
        tools=[tool],
        extra_body={
            "enable_thinking": False,
            "thinking": {"type": "disabled"},
            "reasoning": {"enabled": False},
            "provider": {"order": ["x"]},
            "usage": {"include": True},
            "num_ctx": 8192,
            "cache_prompt": True,
            "temperature": "0.5",
        },
    )
    message = raw.parse().choices[0].message
    return {
        "text": message.content,
        "reasoning": getattr(message, "reasoning", None),
        "ignored": raw.headers["x-eaglegate-ignored-fields"],
    }


def respond(items: list[Any]) -> Any:
    given: dict[str, Any] = {
        "model": "demo",
        "input": items,
        "tools": [{"type": "function", **FUNCTION}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": None},
    }
    if STREAM == ["stream"]:
        with CLIENT.responses.stream(**given) as stream:
            stream.until_done()
            return stream.get_final_response()
    return CLIENT.responses.create(**given)


def reasoning() -> dict[str, Any]:
    """Send back only the encrypted content of the reasoning."""
    items: list[Any] = [{"role": "user", "content": "play:thought Weather?"}]
    first = respond(items)
    (thought,) = [item for item in first.output if item.type == "reasoning"]
    (call,) = [item for item in first.output if item.type == "function_call"]
    items += [
        {"type": "reasoning", "id": thought.id, "summary": [],
         "encrypted_content": thought.encrypted_content},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]  # fmt: skip
    second = respond(items)
    return {
        "text": second.output_text,
        "encrypted": bool(thought.encrypted_content),
        "stored": bool(second.store),
    }


print(json.dumps(fields() if KIND == "fields" else reasoning()))
