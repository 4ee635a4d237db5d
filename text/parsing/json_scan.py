"""Scanners that follow JSON while it is written, to find a value's end or a string's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

_STRING_BODY = re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*', re.DOTALL)
_STRUCTURE = re.compile(r'["{}\[\]]')
DEEP = 1 << 30
_SCALAR_END = re.compile(r"[\s,;\]}<\[{]")


class JsonScan:
    """Scanner of one JSON value, at the cost of a regex search.

    ``in_string`` is true between the quotes of a string. ``broken`` is set by a raw line break in a
    string, which JSON forbids: from then on quotes prove nothing.
    """

    __slots__ = ("_depth", "_escaped", "_started", "broken", "done", "in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._escaped = False
        self._started = False
        self.in_string = False
        self.broken = False
        self.done = False

    @classmethod
    def inside(cls, in_string: bool) -> JsonScan:
        """Make a scanner that is inside many objects, so that no piece ends the value."""
        scan = cls()
        scan._started, scan._depth, scan.in_string = True, DEEP, in_string
        return scan

    def feed(self, text: str, start: int = 0, end: int | None = None) -> int:
        """Follow ``text[start:end]``. Return the index just past the value, or ``end``."""
        end = len(text) if end is None else end
        if self._depth and not self._escaped and end - start <= SHORT:
            depth, closing, in_string, is_escaped, is_broken = follow(
                text[start:end], self.in_string
            )
            if self._depth > closing:
                self._depth += depth
                self.in_string, self._escaped = in_string, is_escaped
                self.broken = self.broken or is_broken
                return end
        return self._follow(text, start, end)

    def _follow(self, text: str, position: int, end: int) -> int:
        while position < end and not self.done:
            if self.in_string:
                position = self._string(text, position, end)
            elif self._depth:
                position = self._scan_nested(text, position, end)
            else:
                position = self._top(text, position, end)
        return position

    def is_quoted(self, text: str) -> bool:
        """Return True if all of ``text`` is inside the open string."""
        open_string = self.in_string and not self._escaped and not self.broken
        return open_string and '"' not in text and "\\" not in text and "\n" not in text

    def _string(self, text: str, position: int, end: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        match = _STRING_BODY.match(text, position, end)
        assert match is not None  # the pattern matches the empty string
        position = match.end()
        if position == end:
            return position
        if text[position] == "\\":
            self._escaped = True
        elif text[position] == "\n":
            self.broken = True
        else:
            self.in_string = False
            self.done = not self._depth
        return position + 1

    def _scan_nested(self, text: str, position: int, end: int) -> int:
        match = _STRUCTURE.search(text, position, end)
        if match is None:
            return end
        char = match[0]
        if char == '"':
            self.in_string = True
        elif char in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self.done = not self._depth
        return match.end()

    def _top(self, text: str, position: int, end: int) -> int:
        char = text[position]
        if not self._started:
            if not char.isspace():
                self._started = True
                self.in_string = char == '"'
                self._depth = int(char in "{[")
            return position + 1
        match = _SCALAR_END.search(text, position, end)
        self.done = match is not None
        return end if match is None else match.start()


SHORT = 24
"""Longest piece whose effect is cached, because tokens repeat."""


@lru_cache(maxsize=1 << 14)
def follow(piece: str, in_string: bool) -> tuple[int, int, bool, bool, bool]:
    """Scan a piece inside a value.

    Returns the change of depth, the number of closing brackets, and three flags: the piece ends in
    a string, it ends with a backslash, and it has broken a string.
    """
    scan = JsonScan.inside(in_string)
    scan._follow(piece, 0, len(piece))
    closing = piece.count("}") + piece.count("]")
    return scan._depth - DEEP, closing, scan.in_string, scan._escaped, scan.broken


class JsonText:
    """Sink that passes a JSON value on without the white space around it.

    Other text after the value is passed on as well. The result is then not JSON.
    """

    __slots__ = ("_begun", "_held", "_scan", "_sink")

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._scan = JsonScan()
        self._sink = sink
        self._begun = False
        self._held: list[str] = []

    def write(self, text: str) -> None:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        end = self._scan.feed(text)
        if end:
            self._sink(text[:end])
        if end < len(text):
            self._after(text[end:])

    def _after(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._sink("".join([*self._held, body]))
            self._held.clear()
        self._held.append(text[len(body) :])


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
"""Part of a JSON string that no later text changes. An incomplete escape waits for its rest, and
the first half of a surrogate pair for the second."""
_ESCAPE = re.compile(
    rf"\\u([dD][89abAB]{_HEX}{{2}})\\u([dD][c-fC-F]{_HEX}{{2}})|\\u({_HEX}{{4}})|\\(.)", re.DOTALL
)
REPLACED = "\ufffd"
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {c: c for c in '"\\/'}


class Unescaper:
    """Decoder of a JSON string while it is written, up to the closing quote.

    ``opening`` precedes the text and is dropped. Text after the string is passed on.
    """

    __slots__ = ("_held", "_opening", "closed", "left")

    def __init__(self, opening: str = "") -> None:
        self._opening = opening
        self._held = ""
        """Text whose meaning later characters may change."""
        self.closed = False
        self.left = ""
        """Text after the string, from the piece that closes it."""

    def write(self, text: str) -> str:
        if self.closed:
            return text
        if self._opening:
            text, self._opening = text.removeprefix(self._opening), ""
        self._held += text
        match = _SETTLED.match(self._held)
        assert match is not None  # the pattern matches the empty string
        tail = self._held[match.end() :]
        self.closed = tail.startswith('"')
        self._held = "" if self.closed else tail
        self.left = tail[1:] if self.closed else ""
        return _ESCAPE.sub(_character, match[0]) + self.left


def _character(escape: re.Match[str]) -> str:
    """Decode an escape. An escape unknown to JSON stays; a lone surrogate becomes U+FFFD."""
    high, low, code, letter = escape.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if code:
        return REPLACED if 0xD800 <= int(code, 16) <= 0xDFFF else chr(int(code, 16))
    return _ESCAPED.get(letter, escape[0])
