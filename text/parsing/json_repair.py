"""Repair of arguments' JSON while it is written, where only one meaning is possible.

There are four repairs: a comma before a closing bracket, an object that was encoded twice and is
therefore a string, a control character in a string such as a line break, and a backslash that
escapes nothing. Everything else passes unchanged. ``find_missing`` finds the brackets that are
missing at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring

from eaglegate.text.events import Repair
from eaglegate.text.parsing.json_scan import SHORT, Unescaper
from eaglegate.text.parsing.reader import ignore

_STRING = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrtu])|(.))|([\x00-\x1f])', re.DOTALL)
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_CLOSES = {"{": "}", "[": "]"}
_OUTSIDE = re.compile(r'"|,\s{0,100}(?=[}\]])|,\s{0,100}\Z')
_ENCODED = re.compile(r'"(?:\s|\\[nrt]){0,100}\{')
_MAY_BE_ENCODED = re.compile(r'"(?:\s|\\[nrt]){0,100}\\?\Z')


class JsonRepair:
    """Sink for one JSON value: ``write`` its pieces, then call ``end``."""

    __slots__ = ("_encoded", "_held", "_in_string", "_repair", "_sink", "_started")

    def __init__(self, sink: Callable[[str], None], repair: Callable[[Repair], None]) -> None:
        self._sink = sink
        self._repair = repair
        self._held = ""
        """Comma, or backslash in a string, whose repair depends on the text after it."""
        self._in_string = self._started = False
        self._encoded: Unescaper | None = None

    def write(self, text: str) -> None:
        if self._in_string and self._encoded is None and not self._held and _is_plain(text):
            self._sink(text)
            return
        if not self._started:
            text, self._held = self._held + text, ""
            if not self._start(text):
                self._held = text
                return
        if self._encoded is not None:
            text = self._encoded.write(text)
        text, self._held = self._held + text, ""
        if len(text) <= SHORT and self._encoded is None:
            self._write_short(text)
        elif output := self._without_commas(text):
            self._sink(output)

    def _write_short(self, text: str) -> None:
        output, self._in_string, self._held, repairs = mend(text, self._in_string)
        for repair in repairs:
            self._repair(repair)
        if output:
            self._sink(output)

    def end(self) -> None:
        """End the value, complete or not, and write the text held back unchanged."""
        if self._held:
            self._sink(self._held)
        self._held = ""

    def _start(self, text: str) -> bool:
        """Return True if the beginning shows what the value is."""
        if not text.startswith('"'):
            self._started = bool(text.strip())
        elif not _MAY_BE_ENCODED.match(text):
            self._started = True
            if _ENCODED.match(text):
                self._encoded = Unescaper('"')
                self._repair(Repair.DOUBLE_ENCODED)
        return self._started

    def _without_commas(self, text: str) -> str:
        out: list[str] = []
        position = 0
        while position < len(text):
            piece, position = (self._string if self._in_string else self._structure)(text, position)
            out.append(piece)
        return "".join(out)

    def _string(self, text: str, position: int) -> tuple[str, int]:
        match = _STRING.match(text, position)
        assert match is not None  # the pattern matches the empty string
        body, end = match[0], match.end()
        if not _is_plain(body):
            body = _ESCAPE.sub(self._escape, body)
        if end == len(text):
            return body, end
        self._in_string = text[end] != '"'
        if self._in_string:
            self._held = text[end:]
            return body, len(text)
        return f'{body}"', end + 1

    def _escape(self, match: re.Match[str]) -> str:
        """Return a valid escape unchanged, and anything else as JSON writes it."""
        escape, char, control = match.groups()
        if escape:
            return match[0]
        if control or char < " ":
            self._repair(Repair.CONTROL_CHARACTER)
            return encode_basestring(control or char)[1:-1]
        self._repair(Repair.INVALID_ESCAPE)
        return char if char == "'" else f"\\\\{char}"

    def _structure(self, text: str, position: int) -> tuple[str, int]:
        match = _OUTSIDE.search(text, position)
        if match is None:
            return text[position:], len(text)
        prefix, end = text[position : match.start()], match.end()
        if match[0] == '"':
            self._in_string = True
            return f'{prefix}"', end
        if end == len(text):
            self._held = match[0]
            return prefix, end
        self._repair(Repair.TRAILING_COMMA)
        return prefix + match[0][1:], end


@lru_cache(maxsize=1 << 14)
def mend(piece: str, in_string: bool) -> tuple[str, bool, str, tuple[Repair, ...]]:
    """Mend a piece inside a value. Results are cached, because tokens repeat.

    Returns the mended text, True if it ends in a string, the text held back, and the repairs.
    """
    repairs: list[Repair] = []
    repair = JsonRepair(ignore, repairs.append)
    repair._in_string = in_string
    output = repair._without_commas(piece)
    return output, repair._in_string, repair._held, tuple(dict.fromkeys(repairs))


def _is_plain(text: str) -> bool:
    """Return True if a piece of a string has nothing to mend and does not end the string."""
    return '"' not in text and "\\" not in text and text.isprintable()


def find_missing(text: str) -> str:
    """Return the brackets that would close ``text`` if nothing else is missing, else "".

    An object or list that ends right after its opening bracket also lacks its members.
    """
    closers: list[str] = []
    for match in _BRACKET.finditer(text):
        bracket = match[0]
        if bracket in _CLOSES:
            closers.append(_CLOSES[bracket])
        elif bracket in ("}", "]") and (not closers or closers.pop() != bracket):
            return ""
    if text.rstrip().endswith(("{", "[")):
        return ""
    missing_closers = "".join(reversed(closers))
    try:
        json.loads(text + missing_closers)
    except (ValueError, RecursionError):
        return ""
    return missing_closers
