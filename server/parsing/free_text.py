"""Custom tools: a call's one free text, read out of the JSON a model writes it in.

No open model's template knows tools without a schema, so a custom tool is offered as a function
with the one argument ``input``, and what the model writes for it is delivered as text again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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
_ESCAPE = re.compile(rf"\\(?:u({_HEX}{{4}})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {c: c for c in '"\\/'}


class FreeText:
    """``write`` gives what the text grew by, ``end`` what is left when the call is over."""

    __slots__ = ("_all", "_closed", "_held", "_opened")

    def __init__(self) -> None:
        self._all: list[str] = []
        self._held = ""
        self._opened = self._closed = False

    def write(self, arguments: str) -> str:
        if self._closed:
            return ""
        self._held += arguments
        if not self._opened:
            self._all.append(arguments)
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._opened, self._held = True, self._held[head.end() :]
        return self._unescaped()

    def end(self) -> str:
        """Of arguments in another shape: their ``input``, or all of them as they are."""
        if self._opened:
            return ""
        written = "".join(self._all)
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            return written
        if isinstance(value, dict) and isinstance(text := value.get(ARGUMENT, ""), str):
            return _proper(text)
        return written

    def _unescaped(self) -> str:
        settled = _SETTLED.match(self._held)
        assert settled is not None  # the pattern matches the empty string
        self._held = self._held[settled.end() :]
        if self._held.startswith('"'):
            self._closed, self._held = True, ""
        return _proper(_ESCAPE.sub(_character, settled[0]))


def _character(escape: re.Match[str]) -> str:
    """What JSON knows no meaning of stays as it stands."""
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPED.get(escape[2], escape[0])


def _proper(text: str) -> str:
    """Half of a surrogate pair is no character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
