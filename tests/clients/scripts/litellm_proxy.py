"""OpenAI's SDK and Anthropic's API through LiteLLM's proxy. Driven by test_python_sdks.py.

python litellm_proxy.py URL
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
from openai import OpenAI

URL = sys.argv[1]
CLIENT = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Weather of a city.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}


def converse(model: str) -> dict[str, Any]:
    fixed: dict[str, Any] = {"model": model, "max_tokens": 200, "tools": [TOOL]}
    messages: list[Any] = [{"role": "user", "content": "play:weather Weather?"}]
    first = CLIENT.chat.completions.create(**fixed, messages=messages).choices[0].message
    (call,) = first.tool_calls
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    whole = CLIENT.chat.completions.create(**fixed, messages=messages)
    usage = {"include_usage": True}
    stream = CLIENT.chat.completions.create(
        **fixed, messages=messages, stream=True, stream_options=usage
    )
    chunks = list(stream)
    return {
        "call": json.loads(call.function.arguments),
        "whole": whole.choices[0].message.content,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "tokens": whole.usage.completion_tokens,
    }


def messages(model: str) -> dict[str, Any]:
    body = {
        "model": model,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "play:weather Weather?"}],
        "tools": [{"name": "weather", "input_schema": PARAMETERS}],
    }
    answer = httpx.post(f"{URL}/v1/messages", json=body, timeout=60)
    answer.raise_for_status()
    (use,) = [block for block in answer.json()["content"] if block["type"] == "tool_use"]
    return use["input"]


found: dict[str, Any] = {model: converse(model) for model in ("demo", "demo-anthropic")}
found["messages"] = [messages(model) for model in ("demo", "demo-anthropic")]
response = CLIENT.responses.create(model="demo-openai", input="play:thanks Thanks.")
found["response"] = response.output_text
found["models"] = sorted(model.id for model in CLIENT.models.list())
print(json.dumps(found))
