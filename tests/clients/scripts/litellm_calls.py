"""LiteLLM's SDK through four of its providers. Driven by test_python_sdks.py.

python litellm_calls.py URL
"""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

litellm.telemetry = False
URL = sys.argv[1]
PROVIDERS = {
    "openai/demo": f"{URL}/v1",
    "hosted_vllm/demo": f"{URL}/v1",
    "anthropic/demo": URL,
    "text-completion-openai/demo": f"{URL}/v1",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def converse(model: str, base: str) -> dict[str, Any]:
    fixed = {"model": model, "api_base": base, "api_key": "none", "max_tokens": 200}
    messages: list[Any] = [{"role": "user", "content": "play:weather Weather?"}]
    first = litellm.completion(**fixed, messages=messages, tools=[TOOL]).choices[0].message
    call = first.tool_calls[0]
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = litellm.completion(**fixed, messages=messages, tools=[TOOL])
    stream = litellm.completion(
        **fixed,
        messages=messages,
        tools=[TOOL],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    return {
        "call": json.loads(call.function.arguments),
        "whole": second.choices[0].message.content,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "tokens": second.usage.completion_tokens > 0,
    }


found = {
    model: converse(model, base)
    for model, base in PROVIDERS.items()
    if not model.startswith("text-completion")
}
text = litellm.text_completion(
    model="text-completion-openai/demo", prompt="one", api_base=f"{URL}/v1", api_key="none"
)
found["text"] = text.choices[0].text
response = litellm.responses(
    model="openai/demo", input="play:thanks Thanks.", api_base=f"{URL}/v1", api_key="none"
)
found["response"] = response.output_text
print(json.dumps(found))
