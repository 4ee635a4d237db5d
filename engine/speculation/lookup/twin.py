"""Twins of a conversation's text: what an answer quotes, written as the answer will write it.

An answer that quotes a tool's result in the arguments of a call escapes it: a newline becomes
``\\n``, and the tokens differ. So tool results are looked up as JSON strings, too. The other way
round, strings in the arguments of earlier calls are looked up as plain text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TWIN_TOKENS = 16_384
"""Tokens of a request's twins, the newest ones. They take 8 bytes each in the engine."""
TWIN_CHARACTERS = 4 * TWIN_TOKENS
SHORTEST = 16
"""Characters below which a text is not worth a twin."""
MAX_DEPTH = 8
"""Nesting of arguments in which strings are looked for."""


def write_twins(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the newest twins of the messages of a chat template, in their order; may be empty."""
    twins: list[str] = []
    room = TWIN_CHARACTERS
    for message in reversed(messages):
        for twin in reversed([*list_twins(message)]):
            twins.append(twin[-room:])
            room -= len(twin)
            if room <= 0:
                return "\n\n".join(reversed(twins))
    return "\n\n".join(reversed(twins))


def list_twins(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the twins of one message that differ from its own text."""
    if message.get("role") == "tool":
        for text in list_texts(message.get("content")):
            if (twin := escape(text)) != text:
                yield twin
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        for text in _list_strings(_read_arguments(function.get("arguments")), MAX_DEPTH):
            if escape(text) != text:
                yield text


def list_texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for part in content:
            if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
                yield text


def escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _read_arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):  # a model may have written anything
        return None


def _list_strings(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= SHORTEST:
            yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _list_strings(item, depth - 1)
    elif depth and isinstance(value, Sequence):
        for item in value:
            yield from _list_strings(item, depth - 1)
