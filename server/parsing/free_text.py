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


class FreeText:
    """``write`` gives what the text grew by, ``end`` what is left when the call is over."""

    __slots__ = ("_closed", "_held", "_opened")

    def __init__(self) -> None:
        self._held = ""
        """All of it until the text begins, then what a later character may change."""
        self._opened = self._closed = False

    def write(self, arguments: str) -> str:
        if self._closed:
            return ""
        self._held += arguments
        if not self._opened:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._opened, self._held = True, self._held[head.end() :]
        return self._unescaped()

    def end(self) -> str:
        """Of arguments in another shape: their ``input``, or all of them as they are."""
        if self._opened:
            return ""
        written = self._held
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            return written
        if isinstance(value, dict) and isinstance(text := value.get(ARGUMENT, ""), str):
            return "".join(_proper(char, written) for char in text)
        return written

    def _unescaped(self) -> str:
        settled = _SETTLED.match(self._held)
        assert settled is not None  # the pattern matches the empty string
        self._held = self._held[settled.end() :]
        if self._held.startswith('"'):
            self._closed, self._held = True, ""
        return _ESCAPE.sub(_character, settled[0])


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
