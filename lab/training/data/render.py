"""Conversations as text, identical to the output of `chat_template.jinja`, as a test checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eaglegate.lab.training.data.turn import Call, Dialogue, Tool
from eaglegate.lab.training.data.values import to_json

THINK_START, THINK_END = "<think>\n", "\n</think>\n\n"
TOOL_HINT = "</tools>\nTo call a tool, write JSON inside <tool_call></tool_call>.<|im_end|>\n"


GENERATE = "<|im_start|>assistant\n"


@dataclass(frozen=True)
class Segment:
    """Text that is tokenized separately, with a flag for an earlier answer."""

    text: str
    answer: bool = False


def prompt_text(conversation: Dialogue) -> str:
    """Return all text before the model's turn, with the generation prompt."""
    return "".join(segment.text for segment in prompt_segments(conversation))


def prompt_segments(conversation: Dialogue) -> list[Segment]:
    messages = conversation.messages
    parts: list[Segment] = []
    if conversation.tools:
        system = ""
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"] + "\n\n", messages[1:]
        tools = "".join(tool_line(tool) for tool in conversation.tools)
        parts.append(Segment(f"<|im_start|>system\n{system}<tools>\n{tools}{TOOL_HINT}"))
    for message in messages:
        parts += message_segments(message)
    return [*parts, Segment(GENERATE)]


def answer_text(conversation: Dialogue, thinking: bool) -> tuple[str, str]:
    """Return the think block and the rest of the model's turn."""
    body = conversation.answer
    if not thinking:
        body = conversation.direct_answer or body
    body += "\n".join(call_text(call) for call in conversation.calls)
    think_text = conversation.thought if thinking else ""
    return f"{THINK_START}{think_text}{THINK_END}", f"{body}<|im_end|>"


def call_text(call: Call) -> str:
    body = f'{{"name": "{call.name}", "arguments": {to_json(call.arguments)}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def message_segments(message: dict[str, Any]) -> list[Segment]:
    calls = [
        call_text(Call(item["function"]["name"], item["function"]["arguments"]))
        for item in message.get("tool_calls", [])
    ]
    content = message["content"] + "\n".join(calls) + "<|im_end|>"
    if message["role"] == "assistant":
        return [Segment(GENERATE), Segment(content, answer=True), Segment("\n")]
    return [Segment(f"<|im_start|>{message['role']}\n{content}\n")]


def tool_line(tool: Tool) -> str:
    """Return `name(param: type, optional: type?) description`, a third of the schema's tokens."""
    function = tool["function"]
    return f"{function['name']}({parameters(function['parameters'])}) {function['description']}\n"


def parameters(schema: dict[str, Any]) -> str:
    return ", ".join(
        f"{key}: {type_of(inner)}{'' if key in schema['required'] else '?'}"
        for key, inner in schema["properties"].items()
    )


def type_of(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(schema["enum"])
    if "properties" in schema:
        return "{" + parameters(schema) + "}"
    return type_of(schema["items"]) + "[]" if schema["type"] == "array" else schema["type"]
