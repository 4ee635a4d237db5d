"""Mends the JSON of arguments while it is written, where it can mean only one thing.

Four things only: a comma before a closing bracket, an object that was encoded twice, so that it
stands in a string, a line break or another control character in a string, and a backslash that
escapes nothing. Everything else passes as it comes. ``find_missing`` knows brackets that are
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
    """A sink for one JSON value: ``write`` its pieces, then ``end``."""

    __slots__ = ("_encoded", "_held", "_in_string", "_repair", "_sink", "_started")

    def __init__(self, sink: Callable[[str], None], repair: Callable[[Repair], None]) -> None:
        self._sink = sink
        self._repair = repair
        self._held = ""
        """A comma, or a backslash in a string: what follows decides."""
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
        elif mended := self._without_commas(text):
            self._sink(mended)

    def _write_short(self, text: str) -> None:
        mended, self._in_string, self._held, repairs = mend(text, self._in_string)
        for repair in repairs:
            self._repair(repair)
        if mended:
            self._sink(mended)

    def end(self) -> None:
        """The value is over, whole or not: what was held back goes out as it stands."""
        if self._held:
            self._sink(self._held)
        self._held = ""

    def _start(self, text: str) -> bool:
        """Whether the beginning says what the value is."""
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
        at = 0
        while at < len(text):
            piece, at = (self._string if self._in_string else self._structure)(text, at)
            out.append(piece)
        return "".join(out)

    def _string(self, text: str, at: int) -> tuple[str, int]:
        found = _STRING.match(text, at)
        assert found is not None  # the pattern matches the empty string
        body, end = found[0], found.end()
        if not _is_plain(body):
            body = _ESCAPE.sub(self._escape, body)
        if end == len(text):
            return body, end
        self._in_string = text[end] != '"'
        if self._in_string:
            self._held = text[end:]
            return body, len(text)
        return f'{body}"', end + 1

    def _escape(self, found: re.Match[str]) -> str:
        """A valid escape as it is, anything else as JSON has it."""
        escape, char, control = found.groups()
        if escape:
            return found[0]
        if control or char < " ":
            self._repair(Repair.CONTROL_CHARACTER)
            return encode_basestring(control or char)[1:-1]
        self._repair(Repair.INVALID_ESCAPE)
        return char if char == "'" else f"\\\\{char}"

    def _structure(self, text: str, at: int) -> tuple[str, int]:
        found = _OUTSIDE.search(text, at)
        if found is None:
            return text[at:], len(text)
        before, end = text[at : found.start()], found.end()
        if found[0] == '"':
            self._in_string = True
            return f'{before}"', end
        if end == len(text):
            self._held = found[0]
            return before, end
        self._repair(Repair.TRAILING_COMMA)
        return before + found[0][1:], end


@lru_cache(maxsize=1 << 14)
def mend(piece: str, in_string: bool) -> tuple[str, bool, str, tuple[Repair, ...]]:
    """Mend a piece inside a value. Results are looked up, since tokens repeat.

    Returns the mended text, whether it ends in a string, the text that is held back of it, and the
    repairs.
    """
    repairs: list[Repair] = []
    repair = JsonRepair(ignore, repairs.append)
    repair._in_string = in_string
    mended = repair._without_commas(piece)
    return mended, repair._in_string, repair._held, tuple(dict.fromkeys(repairs))


def _is_plain(text: str) -> bool:
    """Whether a piece of a string surely has nothing to mend in it, and does not end it."""
    return '"' not in text and "\\" not in text and text.isprintable()


def find_missing(text: str) -> str:
    """The brackets that would close ``text``, where that is all it lacks; else nothing.

    An object or a list that has only begun lacks its members, too.
    """
    closers: list[str] = []
    for found in _BRACKET.finditer(text):
        bracket = found[0]
        if bracket in _CLOSES:
            closers.append(_CLOSES[bracket])
        elif bracket in ("}", "]") and (not closers or closers.pop() != bracket):
            return ""
    if text.rstrip().endswith(("{", "[")):
        return ""
    missing = "".join(reversed(closers))
    try:
        json.loads(text + missing)
    except (ValueError, RecursionError):
        return ""
    return missing
