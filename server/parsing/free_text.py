"""Custom tools: a call's one free text, read out of the JSON a model writes it in.

No open model's template knows tools without a schema, so a custom tool is offered as a function
with the one argument ``input``, and what the model writes for it is delivered as text again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from server.parsing.markers import FRAGMENT

ARGUMENT = "input"
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string"}},
    "required": [ARGUMENT],
    "additionalProperties": False,
}

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_HEX = "[0-9a-fA-F]"
_SETTLED = re.compile(
    r'(?:[^"\\]++'
    r"|\\[^u]"
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}}"
    rf"|\\u[dD][89abAB]{_HEX}{{2}}(?=[^\\]|\\[^u]|\\u{_HEX}{{4}}|\\u{_HEX}{{0,3}}[^0-9a-fA-F])"
    rf"|\\u{_HEX}{{0,3}}(?=[^0-9a-fA-F])"
    r")*+",
    re.DOTALL,
)
"""The part of a JSON string that nothing later changes: half an escape waits for its rest, and the
first half of a surrogate pair for the second."""
_ESCAPE = re.compile(
    rf"\\u([dD][89abAB]{_HEX}{{2}})\\u([dD][c-fC-F]{_HEX}{{2}})|\\u({_HEX}{{4}})|\\(.)", re.DOTALL
)
REPLACED = "\ufffd"
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {c: c for c in '"\\/'}


class Unescaper:
    """The text of a JSON string as it is written, up to the quote that closes it.

    ``opening`` is what precedes the text, and is dropped. What follows the string is passed on.
    """

    __slots__ = ("_held", "_opening", "closed", "left")

    def __init__(self, opening: str = "") -> None:
        self._opening = opening
        self._held = ""
        """What a later character may change."""
        self.closed = False
        self.left = ""
        """What follows the string, of the piece that closes it."""

    def write(self, text: str) -> str:
        if self.closed:
            return text
        if self._opening:
            text, self._opening = text.removeprefix(self._opening), ""
        self._held += text
        settled = _SETTLED.match(self._held)
        assert settled is not None  # the pattern matches the empty string
        rest = self._held[settled.end() :]
        self.closed = rest.startswith('"')
        self._held = "" if self.closed else rest
        self.left = rest[1:] if self.closed else ""
        return _ESCAPE.sub(_character, settled[0]) + self.left


class FreeText:
    """``write`` gives what the text grew by, ``end`` what is left when the call is over."""

    __slots__ = ("_held", "_text")

    def __init__(self) -> None:
        self._held = ""
        """All of it until the text begins."""
        self._text: Unescaper | None = None

    def write(self, arguments: str) -> str:
        if self._text is None:
            self._held += arguments
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._text = Unescaper()
            arguments = self._held[head.end() :]
        if self._text.closed:
            return ""
        said = self._text.write(arguments)
        return said[: -len(self._text.left)] if self._text.left else said

    def end(self) -> str:
        """Of arguments in another shape: their ``input``, or all of them as they are."""
        if self._text is not None:
            return ""
        written = self._held
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            return written
        if isinstance(value, dict) and isinstance(text := value.get(ARGUMENT, ""), str):
            return "".join(_proper(char, written) for char in text)
        return written


def _character(escape: re.Match[str]) -> str:
    """What JSON gives no meaning to stays; half of a surrogate pair is no character."""
    high, low, code, other = escape.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if code:
        return REPLACED if 0xD800 <= int(code, 16) <= 0xDFFF else chr(int(code, 16))
    return _ESCAPED.get(other, escape[0])


def _proper(char: str, written: str) -> str:
    """The same for text that is decoded already; FRAGMENT was written as such."""
    alone = "\ud800" <= char <= "\udfff" and not (char == FRAGMENT and FRAGMENT in written)
    return REPLACED if alone else char
