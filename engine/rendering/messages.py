"""Convert OpenAI messages for chat templates, as vLLM does, and filter template variables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TemplateMessage = dict[str, Any]
TEXT = ("text", "input_text", "output_text", "refusal", "thinking")
"""Kinds of parts that hold text, each in a field of its kind's name or in ``text``."""
BILLING = "x-anthropic-billing-header"
"""A line some clients put first, another one each time: it would spoil every prefix cache."""


def convert_messages(
    messages: Sequence[Mapping[str, Any]], *, in_parts: bool
) -> list[TemplateMessage]:
    """Raises ValueError for content that is no text."""
    return [_message(message, in_parts) for message in messages]


def merge_developer(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """For templates that do not know the role: it is the system's, in one message at the top."""
    if not any(message["role"] == "developer" for message in messages):
        return list(messages)
    turned = [_as_system(message) for message in messages]
    systems = [message for message in turned if message["role"] == "system"]
    if len(systems) == 1 and turned[0] is systems[0]:
        return turned
    texts = [_joined(message.get("content", "")) for message in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in turned if message["role"] != "system")]


def _as_system(message: TemplateMessage) -> TemplateMessage:
    if message["role"] != "developer":
        return message
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _message(message: Mapping[str, Any], in_parts: bool) -> TemplateMessage:
    role = message["role"]
    parts = _parts(message.get("content"))
    if role == "system":
        parts = [kept for part in parts if (kept := _without_billing(part)) is not None]
    plain = not in_parts or (role == "tool" and all(part["type"] == "text" for part in parts))
    content = "\n".join(part["text"] for part in parts) if plain else parts
    out: TemplateMessage = {"role": role, "content": content}
    if role == "assistant":
        out |= _assistant(message)
    elif role == "tool" and "tool_call_id" in message:
        out["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        out["name"] = message["name"]
    if role == "developer":
        out["tools"] = message.get("tools")
    return out


def _parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part) for part in content]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type", "text")
    text = part.get(kind) if isinstance(part.get(kind), str) else part.get("text")
    if kind not in TEXT or not isinstance(text, str):
        raise ValueError(f"content of type {kind!r} is not text; this model is given text alone")
    return {"type": "text", "text": text}


def _without_billing(part: dict[str, Any]) -> dict[str, Any] | None:
    if not part["text"].startswith(BILLING):
        return part
    rest = part["text"].partition("\n")[2]
    return {**part, "text": rest} if rest else None


def _assistant(message: Mapping[str, Any]) -> TemplateMessage:
    out: TemplateMessage = {}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_call(call) for call in calls]
    if (reasoning := message.get("reasoning")) is not None:
        out["reasoning"] = out["reasoning_content"] = reasoning
    return out


def _call(call: Any) -> dict[str, Any]:
    """Templates write a call's arguments themselves and need them as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ValueError("an assistant's tool_calls must be calls of functions")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(given: Any) -> dict[str, Any]:
    """What is no JSON object becomes an empty one: a model wrote it, and the talk must go on."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return {}
    return given if isinstance(given, dict) else {}


RESERVED = frozenset((
    "messages", "conversation", "tools", "add_generation_prompt", "continue_final_message",
    "chat_template", "chat_template_kwargs", "tokenizer_kwargs", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    "additional_special_tokens",
))  # fmt: skip
"""Names that mean something to a tokenizer's ``apply_chat_template``, or to the gateway."""
GLOBALS = frozenset((
    "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner",
))  # fmt: skip
"""What a template's environment defines."""
CODED = frozenset((
    "enable_thinking", "thinking", "thinking_effort", "preserve_thinking", "reasoning_effort",
    "documents",
))  # fmt: skip
"""For models whose prompts are written in code: no template says what they read."""


def filter_variables(given: Mapping[str, Any] | None, read: Iterable[str]) -> dict[str, Any]:
    """``given`` without what a template that reads ``read`` would not read."""
    names = frozenset(read) - RESERVED - GLOBALS
    return {name: value for name, value in (given or {}).items() if name in names}
