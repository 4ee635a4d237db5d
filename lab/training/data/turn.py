"""Turns of a conversation, and their text, which a test compares with `chat_template.jinja`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

THINK_START, THINK_END = "<think>\n", "\n</think>\n\n"
TOOL_HINT = "</tools>\nTo call a tool, write JSON inside <tool_call></tool_call>.<|im_end|>\n"
GENERATE = "<|im_start|>assistant\n"
Tool = dict[str, Any]
"""A tool in the OpenAI form."""
Message = dict[str, Any]
Spans = tuple[tuple[int, int], ...]
"""Ranges of characters of an answer that the model chooses, where a grammar writes the rest."""


@dataclass(frozen=True)
class PlainTurn:
    """A user's message, and the model's thought and answer."""

    user: str
    thought: str
    answer: str
    direct_answer: str | None = None
    """Answer with thinking off, if it differs."""


@dataclass(frozen=True)
class ToolTurn:
    """Request that needs `tool`, with the arguments and results of its calls, and a report."""

    tool: Tool
    user: str
    arguments: Sequence[Mapping[str, Any]]
    results: Sequence[Any]
    report: str

    @property
    def calls(self) -> list[Message]:
        """The calls as a message has them."""
        name = self.tool["function"]["name"]
        return [
            {"type": "function", "function": {"name": name, "arguments": dict(item)}}
            for item in self.arguments
        ]

    @property
    def messages(self) -> list[Message]:
        """The request, the calls, and the tool's results."""
        texts = (item if isinstance(item, str) else to_json(item) for item in self.results)
        return [
            {"role": "user", "content": self.user},
            {"role": "assistant", "content": "", "tool_calls": self.calls},
            *({"role": "tool", "content": text} for text in texts),
        ]


@dataclass(frozen=True)
class Dialogue:
    """Messages up to the model's turn, and the expected turn."""

    messages: list[Message]
    tools: list[Tool] | None
    thought: str
    answer: str
    calls: Sequence[Message] = ()
    direct_answer: str | None = None
    own_spans: Spans | None = None


@dataclass(frozen=True)
class Segment:
    """Text that is tokenized separately, with a flag for an earlier answer."""

    text: str
    answer: bool = False


def make_tool(
    name: str, description: str, properties: Mapping[str, Any], optional_keys: Sequence[str] = ()
) -> Tool:
    required_keys = [key for key in properties if key not in optional_keys]
    schema = {"type": "object", "properties": dict(properties), "required": required_keys}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def strings(*names: str) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def listed(items: Sequence[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def prompt_text(dialogue: Dialogue) -> str:
    """Return all text before the model's turn, with the generation prompt."""
    return "".join(segment.text for segment in prompt_segments(dialogue))


def prompt_segments(dialogue: Dialogue) -> list[Segment]:
    messages = dialogue.messages
    parts: list[Segment] = []
    if dialogue.tools:
        system = ""
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"] + "\n\n", messages[1:]
        tools = "".join(map(tool_line, dialogue.tools))
        parts.append(Segment(f"<|im_start|>system\n{system}<tools>\n{tools}{TOOL_HINT}"))
    for message in messages:
        parts += message_segments(message)
    return [*parts, Segment(GENERATE)]


def message_segments(message: Message) -> list[Segment]:
    content = message["content"] + call_text(message.get("tool_calls", ())) + "<|im_end|>"
    if message["role"] == "assistant":
        return [Segment(GENERATE), Segment(content, answer=True), Segment("\n")]
    return [Segment(f"<|im_start|>{message['role']}\n{content}\n")]


def answer_text(dialogue: Dialogue, thinking: bool) -> tuple[str, str]:
    """Return the think block and the rest of the model's turn."""
    thought = dialogue.thought if thinking else ""
    body = (not thinking and dialogue.direct_answer) or dialogue.answer
    return f"{THINK_START}{thought}{THINK_END}", f"{body}{call_text(dialogue.calls)}<|im_end|>"


def call_text(calls: Iterable[Message]) -> str:
    return "\n".join(f"<tool_call>\n{to_json(call['function'])}\n</tool_call>" for call in calls)


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
