"""A streamed tool call: print its arguments as they arrive, run the tool, stream the answer."""

import json
import os

from openai import OpenAI

url = os.environ.get("EAGLEGATE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("EAGLEGATE_API_KEY", "none"))
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str) -> str:
    return json.dumps({"city": city, "temperature": 7, "sky": "rain"})


def stream(messages: list[dict]) -> dict:
    """Print one answer as it arrives; returns it as a message for the next request."""
    content, calls = "", {}
    for chunk in client.chat.completions.create(
        model="demo", messages=messages, tools=TOOLS, temperature=0, stream=True
    ):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            print(choice.delta.content or "", end="", flush=True)
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": part.id, "name": "", "arguments": ""})
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
                name, arguments = part.function.name, part.function.arguments
                print(f"{name} " if name else arguments or "", end="", flush=True)
    print()
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls.values()
        ]
    return message


messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
answer = stream(messages)
messages.append(answer)
for call in answer.get("tool_calls", ()):
    result = get_weather(**json.loads(call["function"]["arguments"]))
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
stream(messages)
