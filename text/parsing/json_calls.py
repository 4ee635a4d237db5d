"""The routine that JSON tool formats share: ``{"name": ..., "arguments": {...}}``.

Keys may be in any order, and unknown keys are skipped. Arguments are passed on as written, byte for
byte. Arguments that precede the name are held back until the name is known. The routine reads one
object, several in a row, or a list. An object without a name is not a call, and its text is
returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

from eaglegate.text.events import Repair
from eaglegate.text.parsing.markers import Delimiters, Quotes
from eaglegate.text.parsing.message import Skipping
from eaglegate.text.parsing.output import Calls
from eaglegate.text.parsing.reader import (
    DONE,
    Ended,
    JsonValue,
    Next,
    Subroutine,
    TextSink,
    Until,
    ignore,
)
from eaglegate.text.parsing.tools import WRAPPERS

_FENCE = re.compile(r"`{3}(?:json)?")
_FENCE_BEGINS = re.compile(r"`{1,3}(?:j(?:so?)?)?\Z")
_BROKEN = frozenset('":[')
"""Characters after an object that belong inside an object."""
NO_CALL = "no call"
"""Returned for an object that turned out to be text."""


@dataclass(slots=True)
class JsonCalls:
    """Reader of call objects up to one of ``delimiters``. Text that is no call goes to ``lost``.

    With ``certain`` a marker has announced calls, so a name alone makes a call. Otherwise an object
    is a call only if it has a name and arguments, and no other key than ``others``.
    """

    calls: Calls
    delimiters: Delimiters
    lost: TextSink
    certain: bool = True
    closed: bool = True
    """True if a marker ends the calls. Otherwise the end of the list or other text does."""
    names: Sequence[str] = ("name",)
    arguments: Sequence[str] = ("arguments", "parameters")
    others: Sequence[str] = ("type", "id")
    is_keyed: bool = False
    """True if an object has one key, the name, whose value is the arguments."""
    quotes: Quotes | None = None
    """Marker tokens that may end an unclosed string."""
    tags: Callable[[], Subroutine] | None = None
    """Reads calls in tags instead of JSON. Returns the marker after them, or DONE without calls."""
    unmark: TextSink | None = None
    """Sink for the text after a plain-text opener if the output ends before a call is certain."""
    is_shown: bool = False
    """True once an object has the key of a name, or has ended."""

    def value(self, sink: TextSink) -> JsonValue:
        return JsonValue(self.delimiters, sink, quotes=self.quotes)

    def read(self) -> Subroutine:
        """Read objects, in a list or not. Return the marker that ended them, or DONE.

        A superfluous brace after an object is dropped.
        """
        skipped_parts: list[str] = []
        try:
            return (yield from self._read(skipped_parts))
        except Ended:
            if self.unmark and not self.is_shown:
                self.unmark("".join(skipped_parts))
            raise

    def _read(self, skipped_parts: list[str]) -> Subroutine:
        """Read objects. Text before a call is certain is collected in ``skipped_parts``."""
        has_call = self.is_shown
        while True:
            fence_chars = "`<" if self.tags and not has_call else "`"
            char = yield Next(self.delimiters, skipped_parts.append, keep=fence_chars, markup=True)
            if char == "<" and self.tags and not has_call:
                if marker := (yield from self.tags()):
                    return marker
                char = yield Next(self.delimiters, skipped_parts.append)
            if char == "`":
                may_be_fenced = self.certain and (self.closed or not has_call)
                if may_be_fenced and (yield skip_fence(self.delimiters)) == Skipping.YES:
                    continue
                char = yield Next(self.delimiters, skipped_parts.append)
            if char == "{":
                char = yield from self.object(skipped_parts.append)
                has_call = self.is_shown = True
                skipped_parts.clear()
            elif char not in self.delimiters.markers and char not in (
                "[,;]}" if has_call else "[,;]"
            ):
                self.is_shown = True
                if has_call and char in _BROKEN:
                    self.calls.doubt()
                self.lost("".join(skipped_parts))
                char = (yield Until(self.delimiters, self.lost)) if self.closed else NO_CALL
            if char in self.delimiters.markers:
                return char
            if char == NO_CALL or (char == "]" and not self.closed):
                return DONE

    def object(self, sink: TextSink = ignore) -> Subroutine:
        """Read one object from after its brace.

        Returns DONE or NO_CALL at its end, or the marker that ended it early. ``sink`` gets its
        text if the output ends before a call is certain.
        """
        call_object = _Object(self)
        try:
            end = yield from call_object.members()
        except Ended:
            call_object.truncate(sink)
            raise
        return call_object.finish(end)


def skip_fence(delimiters: Delimiters) -> Skipping:
    """Skip a code fence, which some models write between the markers and the JSON."""
    return Skipping(_FENCE, _FENCE_BEGINS, delimiters.tokens)


class _Object:
    """One object that may be a call. ``_raw`` is its text until it is known to be a call."""

    def __init__(self, form: JsonCalls) -> None:
        self._form = form
        self._calls = form.calls
        self._delimiters = form.delimiters
        self._raw = ["{"]
        self._name = ""
        self._early: list[str] = []
        self._members: dict[str, str] = {}
        """Other members, each as a key with its value as written."""
        self._argued = False
        self._spoiled = False
        self._moved = False
        """True if the arguments are not under their usual key."""
        self._is_null = False
        """True if the arguments are ``null``, which means no arguments."""
        self._begun = False
        self._given_up = False

    def members(self) -> Subroutine:
        while True:
            end = yield Next(self._delimiters, self._raw.append, keep='"{')
            if end in "{;" and end and self._begun and self._argued:
                return DONE  # the closing brace is missing
            if end == "{":
                end = yield Next(self._delimiters, self._raw.append)
            if end == '"':
                end = yield from self._member()
            elif end not in self._delimiters.markers and end not in ",}":
                return (yield from self._give_up(end))
            if end == "}":
                return DONE
            if end in self._delimiters.markers or end == NO_CALL:
                return end

    def finish(self, end: str) -> str:
        """Finish the object: it is closed, or the end marker of its call follows."""
        if not self._argued and self._form.certain and end == DONE:
            self._gather()
        if self._may_begin:
            self._begin()
        if self._begun:
            self._calls.close(self._spoiled or (end != DONE and not self._argued))
            return end
        if not self._given_up:
            self._form.lost("".join(self._raw))
        return end if self._form.certain else NO_CALL

    def truncate(self, sink: TextSink) -> None:
        """End the object with the output. Only a finished name makes a call."""
        if not self._form.is_shown:
            sink("".join(self._raw)[1:])
        if self._spoiled:
            self._calls.spoil()
        if self._may_begin:
            self._begin()
        elif not self._begun and not self._given_up and not self._form.certain:
            self._form.lost("".join(self._raw))

    def _gather(self) -> None:
        """Use the other members as the arguments of a call that has none."""
        tool = self._calls.find(self._name)
        parameters = tool.properties if tool else {}
        arguments = {
            k: v for k, v in self._members.items() if k not in self._form.others or k in parameters
        }
        if not self._name or not arguments:
            return
        if not self._calls.repairing:
            self._spoiled = True
            return
        self._argued = self._moved = True
        members = (f"{encode_basestring(key)}: {value}" for key, value in arguments.items())
        if not self._begun:
            self._begin()
        self._calls.keep_raw("".join(self._raw))
        self._calls.write("{" + ", ".join(members) + "}")
        self._calls.repair(Repair.ARGUMENTS_KEY)

    @property
    def _may_begin(self) -> bool:
        return bool(self._name) and not self._begun and (self._form.certain or self._argued)

    def _begin(self) -> None:
        self._begun = True
        self._calls.begin(self._name)
        self._write_early()
        if self._moved:
            self._calls.repair(Repair.ARGUMENTS_KEY)

    def _write_early(self) -> None:
        for piece in self._early:
            self._calls.write_json(piece)
        if self._is_null:
            self._calls.repair(Repair.NULL_ARGUMENTS)
            self._calls.keep_raw("null")

    def _member(self) -> Subroutine:
        """Read ``"key": value``. Return DONE, or the marker that ended it early."""
        key: list[str] = []
        end = yield self._form.value(self._both(key))
        if end == DONE:
            end = yield Next(self._delimiters, self._raw.append)
        if end == ":":
            return (yield from self._value(_text("".join(key))))
        return end if end in self._delimiters.markers else (yield from self._give_up(end))

    def _value(self, key: str) -> Subroutine:
        end = yield Next(self._delimiters, self._raw.append, keep=None)
        if end in self._delimiters.markers or end in ",}]":
            self._spoiled = True
            return end if end in self._delimiters.markers else DONE
        if self._form.is_keyed and not self._name:
            self._name = key
            return (yield from self._read_arguments())
        if key in ("function", "tool") and end in '{"' and not self._name:
            return (yield from self._read_function(key, end))
        if key in self._form.names and not self._name:
            self._form.is_shown = True
            return (yield from self._read_name())
        if key in self._form.arguments and not self._argued:
            return (yield from self._read_arguments(end))
        if not self._form.certain and key not in self._form.others:
            return (yield from self._give_up(""))
        if self._wraps(key, end):
            self._moved = True
            return (yield from self._read_arguments())
        is_late = self._argued and self._is_parameter(key)
        self._spoiled |= is_late and key != "id"
        value: list[str] = []
        end = yield self._form.value(self._both(value))
        text = "".join(value).strip()
        self._spoiled |= is_late and not _CALL_ID.fullmatch(text)
        self._members.setdefault(key, text)
        return end

    def _wraps(self, key: str, char: str) -> bool:
        """Return True if ``key`` replaces the key of the arguments and its value is an object."""
        may_wrap = self._calls.repairing and not self._argued and key in WRAPPERS
        return may_wrap and char == "{" and not self._is_parameter(key)

    def _is_parameter(self, key: str) -> bool:
        tool = self._calls.find(self._name)
        return tool is not None and key in tool.properties

    def _read_name(self) -> Subroutine:
        parts: list[str] = []
        end = yield self._form.value(self._both(parts))
        if end == DONE:
            self._name = _text("".join(parts))
            if self._may_begin:
                self._begin()
        return end

    def _read_function(self, key: str, char: str) -> Subroutine:
        """Read a nested call object, as in the API, or the name under another key."""
        if char == "{":
            yield Next(self._delimiters, self._raw.append)
            return (yield from self.members())
        parts: list[str] = []
        end = yield self._form.value(self._both(parts))
        name = _text("".join(parts))
        if end == DONE and self._form.certain and self._calls.find(name):
            self._name = name
            if self._may_begin:
                self._begin()
        elif not self._form.certain:
            return (yield from self._give_up(""))
        self._members.setdefault(key, "".join(parts).strip())
        return end

    def _read_arguments(self, char: str = "") -> Subroutine:
        self._argued = True
        self._form.is_shown = True
        if char == "n" and self._calls.repairing:
            return (yield from self._read_null())
        if self._begun and self._moved:
            self._calls.repair(Repair.ARGUMENTS_KEY)
        if self._name and not self._begun:
            self._begin()
        if self._begun:
            return (yield self._form.value(self._calls.write_json))
        return (yield self._form.value(self._both(self._early)))

    def _read_null(self) -> Subroutine:
        """Read arguments that begin like ``null``, which means no arguments."""
        parts: list[str] = []
        try:
            end = yield self._form.value(self._both(parts))
        except Ended:
            self._early = parts
            if self._begun:
                self._write_early()
            raise
        text = "".join(parts)
        self._is_null = text.strip() == "null"
        self._early = [] if self._is_null else [text]
        if self._may_begin:
            self._begin()
        elif self._begun:
            self._write_early()
        return end

    def _give_up(self, char: str) -> Subroutine:
        """Give up on an object that is no call, and read the rest into the right sink."""
        if self._may_begin:
            self._begin()
            self._calls.write_json(char)
            return (yield Until(self._delimiters, self._calls.write_json))
        if self._begun:
            self._spoiled |= char != "]" or not self._argued
            return (yield Until(self._delimiters, ignore))
        self._given_up = self._form.is_shown = True
        self._form.lost("".join(self._raw))
        return (yield Until(self._delimiters, self._form.lost)) if self._form.certain else NO_CALL

    def _both(self, parts: list[str]) -> TextSink:
        def write(text: str) -> None:
            self._raw.append(text)
            parts.append(text)

        return write


_CALL_ID = re.compile(r'"[a-zA-Z0-9]{9}"')
"""Call id that Mistral's templates write after the arguments. It is not a parameter."""


def _text(string: str) -> str:
    """Return the text of a JSON string, or "" if it is not one."""
    try:
        value = json.loads(string)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
