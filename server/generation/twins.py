"""Twins of a conversation's text: what an answer quotes, written as the answer will write it.

An answer that quotes a tool's result in the arguments of a call escapes it: a newline becomes
``\\n``, and the tokens differ. So tool results are looked up as JSON strings, too. The other way
round, strings in the arguments of earlier calls are looked up as plain text. A unified diff has a
space before each line that it leaves alone, so results of several lines are looked up with one, in
the room that the other twins leave.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eaglegate.engine.vllm_fields import MAX_QUOTES

TWIN_CHARACTERS = 4 * MAX_QUOTES
"""Characters of a request's twins, the newest ones."""
READ_CHARACTERS = 8 * TWIN_CHARACTERS
"""Characters of a conversation's results and arguments that are read for each kind of twin, the
newest ones. Reading them takes some 10 ms."""
VALUE_CHARACTERS = 16
"""Characters for which one value of arguments counts, however short it is."""
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
    twins = take(_Reader().list_twins(messages), TWIN_CHARACTERS)
    room = TWIN_CHARACTERS - sum(map(len, twins))
    return SEPARATOR.join([*take(_Reader().list_indented(messages), room), *twins])


def take(texts: Iterable[str], room: int) -> list[str]:
    """Take texts, newest first, with ``room`` characters at most. Return them in their order. The
    oldest one is cut at its beginning."""
    kept_texts: list[str] = []
    for text in texts:
        if not room:
            break
        kept_texts.append(text[-room:])
        room -= len(kept_texts[-1])
    return kept_texts[::-1]


class _Reader:
    """Reads the newest results and arguments of a conversation, up to a number of characters."""

    def __init__(self) -> None:
        self._room = READ_CHARACTERS

    def _may_read(self, size: int) -> bool:
        self._room -= max(size, VALUE_CHARACTERS)
        return self._room >= 0

    def list_twins(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the twins that differ from their own text, newest first."""
        for message in reversed(messages):
            calls = message.get("tool_calls")
            for call in reversed(calls) if isinstance(calls, Sequence) else ():
                function = call.get("function") if isinstance(call, Mapping) else None
                if isinstance(function, Mapping):
                    arguments = self._read_arguments(function.get("arguments"))
                    for text in self._list_strings(arguments, MAX_DEPTH):
                        if escape(text) != text:
                            yield text
            for text in self._list_results(message):
                if (twin := escape(text)) != text:
                    yield twin

    def list_indented(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the tool results with a space before every line, newest first."""
        for message in reversed(messages):
            for text in self._list_results(message):
                if text.count("\n") >= FEWEST_BREAKS:
                    yield indent(text)

    def _list_results(self, message: Mapping[str, Any]) -> Iterator[str]:
        """Yield the ends of the texts of a tool's result, which is a string or a list of parts."""
        content = message.get("content") if message.get("role") == "tool" else ()
        parts = [{"text": content}] if isinstance(content, str) else content
        for part in reversed(parts) if isinstance(parts, Sequence) else ():
            text = part.get("text") if isinstance(part, Mapping) else None
            text = text[-TWIN_CHARACTERS:] if isinstance(text, str) else ""
            if not self._may_read(len(text)):
                return
            yield text

    def _read_arguments(self, arguments: Any) -> Any:
        if not isinstance(arguments, str):
            return arguments
        if len(arguments) > self._room:
            return None
        self._room -= len(arguments)
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):  # a model may have written anything
            return None

    def _list_strings(self, value: Any, depth: int) -> Iterator[str]:
        if isinstance(value, str):
            if len(value) >= SHORTEST:
                yield value[-TWIN_CHARACTERS:]
        elif depth and isinstance(value, Mapping | Sequence):
            items = [*value.values()] if isinstance(value, Mapping) else value
            for item in reversed(items):
                if not self._may_read(len(item) if isinstance(item, str) else 0):
                    return
                yield from self._list_strings(item, depth - 1)


def escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def indent(text: str) -> str:
    return "".join(f" {line}" for line in text.splitlines(keepends=True))
