"""Twins of a conversation's text: what an answer quotes, written as the answer will write it.

An answer that quotes a tool's result in the arguments of a call escapes it: a newline becomes
``\\n``, and the tokens differ. So tool results are looked up as JSON strings, too. The other way
round, strings in the arguments of earlier calls are looked up as plain text. A unified diff has a
space before each line that it leaves alone, so results of several lines are looked up with one, in
the room that the other twins leave.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

TWIN_TOKENS = 16_384
"""Tokens of a request's twins, the newest ones. They take 8 bytes each in the engine."""
TWIN_CHARACTERS = 4 * TWIN_TOKENS
SHORTEST = 16
"""Characters below which a text is not worth a twin."""
FEWEST_BREAKS = 4
"""Line breaks below which a result is not taken for a file, of which an answer may write a diff."""
SEPARATOR = "\n\n"
MAX_DEPTH = 8
"""Nesting of arguments in which strings are looked for."""


def write_twins(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the newest twins of the messages of a chat template, in their order; may be empty.
    Indented ones come before the others."""
    twins = take_newest(messages, list_twins, TWIN_CHARACTERS)
    room = TWIN_CHARACTERS - sum(map(len, twins))
    return SEPARATOR.join([*take_newest(messages, list_indented, room), *twins])


def take_newest(
    messages: Sequence[Mapping[str, Any]],
    list_texts_of: Callable[[Mapping[str, Any]], Iterator[str]],
    room: int,
) -> list[str]:
    """Return the newest texts of the messages, in their order, with ``room`` characters at most.
    The oldest one is cut at its beginning."""
    texts: list[str] = []
    for message in reversed(messages):
        if not room:
            break
        for text in reversed([*list_texts_of(message)]):
            if room:
                texts.append(text[-room:])
                room -= len(texts[-1])
    return texts[::-1]


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


def list_indented(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tool results of one message, with a space before every line."""
    if message.get("role") == "tool":
        for text in list_texts(message.get("content")):
            if text.count("\n") >= FEWEST_BREAKS:
                yield indent(text)


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


def indent(text: str) -> str:
    return "".join(f" {line}" for line in text.splitlines(keepends=True))


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
