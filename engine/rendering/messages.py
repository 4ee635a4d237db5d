"""Convert OpenAI messages for chat templates, as vLLM does, and filter template variables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TemplateMessage = dict[str, Any]
BILLING = "x-anthropic-billing-header"
"""A line that some clients put first, different each time: it would defeat every prefix cache."""


def convert_messages(
    messages: Sequence[Mapping[str, Any]], *, in_parts: bool
) -> list[TemplateMessage]:
    """Raises ValueError for content that is not text."""
    return [_convert_message(message, in_parts) for message in messages]


def merge_developer(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """For templates without the role: developer messages join the system message at the top."""
    if not any(message["role"] == "developer" for message in messages):
        return list(messages)
    turned = [_convert_to_system(message) for message in messages]
    systems = [message for message in turned if message["role"] == "system"]
    if len(systems) == 1 and turned[0] is systems[0]:
        return turned
    texts = [_join_text(message.get("content", "")) for message in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in turned if message["role"] != "system")]


def _convert_to_system(message: TemplateMessage) -> TemplateMessage:
    if message["role"] != "developer":
        return message
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _convert_message(message: Mapping[str, Any], in_parts: bool) -> TemplateMessage:
    role = message["role"]
    parts = _convert_parts(message.get("content"))
    if role == "system":
        parts = [kept for part in parts if (kept := _strip_billing(part)) is not None]
    plain = not in_parts or (role == "tool" and all(part["type"] == "text" for part in parts))
    content = "\n".join(part["text"] for part in parts) if plain else parts
    out: TemplateMessage = {"role": role, "content": content}
    if role == "assistant":
        out |= _convert_assistant(message)
    elif role == "tool" and "tool_call_id" in message:
        out["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        out["name"] = message["name"]
    if role == "developer":
        out["tools"] = message.get("tools")
    return out


def _convert_parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_convert_part(part) for part in content]


def _convert_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind, text = part.get("type", "text"), part.get("text")
    if kind != "text" or not isinstance(text, str):
        raise ValueError(f"content of type {kind!r} is not text; this model is given text alone")
    return {"type": "text", "text": text}


def _strip_billing(part: dict[str, Any]) -> dict[str, Any] | None:
    if not part["text"].startswith(BILLING):
        return part
    rest = part["text"].partition("\n")[2]
    return {**part, "text": rest} if rest else None


def _convert_assistant(message: Mapping[str, Any]) -> TemplateMessage:
    out: TemplateMessage = {}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_convert_call(call) for call in calls]
    if (reasoning := message.get("reasoning")) is not None:
        out["reasoning"] = out["reasoning_content"] = reasoning
    return out


def _convert_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates write the arguments of a call themselves and need them as an object."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": _parse_arguments(function["arguments"])}}


def _parse_arguments(given: Any) -> dict[str, Any]:
    """A model wrote them: anything but a JSON object becomes an empty one, and the chat goes on."""
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
"""Variables a request may not set: known to ``apply_chat_template`` or set by the gateway."""
GLOBALS = frozenset((
    "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner",
))  # fmt: skip
"""Names that a template's environment defines."""
CODED = frozenset((
    "enable_thinking", "thinking", "thinking_effort", "preserve_thinking", "reasoning_effort",
    "documents",
))  # fmt: skip
"""For models whose prompts are written in code: no template names what they read."""


def filter_variables(given: Mapping[str, Any] | None, read: Iterable[str]) -> dict[str, Any]:
    """``given`` without variables that a template which reads ``read`` does not read."""
    names = frozenset(read) - RESERVED - GLOBALS
    return {name: value for name, value in (given or {}).items() if name in names}
