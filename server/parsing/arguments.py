"""JSON arguments out of parameters that a model writes as text: XML-like, GLM, pythonic.

The tool's schema says what a parameter's text means. Where it can only be a string, the JSON
string is written as the text comes. Everything else is written when the parameter is closed,
since ``12`` is not known to be a number before that.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Generator, Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any

from server.parsing.markers import Stops
from server.parsing.output import Calls
from server.parsing.reader import Ended, Until, Want
from server.parsing.tools import refuse_constant

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
STRING = frozenset({"string"})
Step = Generator[Want, str, str]
"""A part of a grammar that returns what ended it."""


def kinds(schema: Any, root: Any = None, depth: int = 0) -> frozenset[str]:
    """The JSON types a schema allows; a string where it does not say."""
    if not isinstance(schema, dict) or depth > 8:
        return STRING
    root = schema if root is None else root
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set(named if isinstance(named, list) else ())
    if not found:
        found |= {_kind(value) for value in _values(schema)}
    for part in _parts(schema, root):
        found |= kinds(part, root, depth + 1)
    return frozenset(kind for kind in found if isinstance(kind, str)) or STRING


def _values(schema: Mapping[str, Any]) -> Iterable[Any]:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else []


def _parts(schema: Mapping[str, Any], root: Any) -> list[Any]:
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in _listed(schema.get(key))]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        parts.append(target)
    return parts


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    by_type = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return by_type.get(type(value), "object")


def as_json(text: str, allowed: frozenset[str]) -> str:
    """The JSON text of a parameter's text, as written where that is JSON of an allowed type.

    What fits no allowed type becomes a string: nothing is lost, and the schema tells.
    """
    written = text.strip()
    word = _WORDS.get(written.lower(), "")
    if word == "null" and "null" in allowed:
        return word
    if word in ("true", "false") and "boolean" in allowed:
        return word
    if allowed & {"integer", "number"} and (number := _number(written, "number" in allowed)):
        return number
    if written[:1] in ("{", "[") and allowed & {"object", "array"}:
        return _container(written) or encode_basestring(text)
    return encode_basestring(text)


def _number(written: str, fractions: bool) -> str:
    """A number as written where that is JSON, else as Python reads it; empty if it is none."""
    try:
        value = float(written)
    except ValueError:
        return ""
    if not math.isfinite(value) or "_" in written or not (fractions or value.is_integer()):
        return ""
    return (
        written
        if _NUMBER.match(written)
        else json.dumps(int(value) if value.is_integer() else value)
    )


def _container(written: str) -> str:
    """An object or array as written, or as JSON where it is written in Python; else empty."""
    try:
        json.loads(written, parse_constant=refuse_constant)
        return written
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(written)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""


class Arguments:
    """Writes the arguments of the open call, parameter by parameter."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        tool = calls.tool
        self._root = tool.parameters if tool else {}
        properties = self._root.get("properties")
        self.properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self.given: set[str] = set()
        """The parameters begun so far."""
        self._value: _Value | None = None
        self._verbatim = False

    def allowed(self, key: str) -> frozenset[str]:
        """The types the schema allows for a parameter."""
        return kinds(self.properties.get(key), self._root)

    def key(self, key: str) -> None:
        """The next parameter, whose value the caller writes."""
        self._calls.write((", " if self.given else "{") + encode_basestring(key) + ": ")
        self.given.add(key)

    def begin(self, key: str, allowed: frozenset[str] | None = None) -> None:
        """The next parameter, of the types the schema allows unless the format says which."""
        self.key(key)
        self._value = _value(self._calls, self.allowed(key) if allowed is None else allowed)

    def write(self, text: str) -> None:
        """A piece of the parameter's text."""
        assert self._value is not None
        self._value.write(text)

    def end(self) -> None:
        """The parameter is closed."""
        if self._value is not None:
            self._value.end()
        self._value = None

    def verbatim(self, text: str) -> None:
        """What is no parameter goes out as it stands; the arguments are no object then."""
        self._verbatim = True
        self._calls.write(text)

    def loose(self, stops: Stops, parameter: str, before: str = "") -> Step:
        """What stands before the first ``parameter``, or in place of all of them."""
        parts = [before]
        try:
            marker = yield Until(stops, parts.append)
        except Ended:
            self.inline("".join(parts))
            raise
        if marker != parameter:
            self.inline("".join(parts))
        return marker

    def inline(self, text: str) -> None:
        """Some models write an object after all, in a format that has parameters."""
        if text.lstrip().startswith("{"):
            self.verbatim(text.strip())

    def close(self) -> None:
        """The call is finished, and with it the object."""
        self.end()
        if self._verbatim:
            return
        self._calls.write("}" if self.given else "{}")

    def cut(self, by_model: bool) -> None:
        """The output ends here. An open value goes out as it was written.

        Where the model itself stopped between two parameters it has no more to say.
        """
        if self._value is not None:
            self._value.cut()
        elif by_model:
            self.close()


class _Text:
    """A string, escaped as it comes."""

    def __init__(self, calls: Calls) -> None:
        self._write = calls.write
        self._opened = False

    def write(self, text: str) -> None:
        quoted = encode_basestring(text)
        self._write(quoted[1:-1] if self._opened else quoted[:-1])
        self._opened = True

    def end(self) -> None:
        self._write('"' if self._opened else '""')

    def cut(self) -> None:
        """Everything has been written."""


class _Typed:
    """A value whose type its whole text decides."""

    def __init__(self, calls: Calls, allowed: frozenset[str]) -> None:
        self._write = calls.write
        self._allowed = allowed
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        self._parts.append(text)

    def end(self) -> None:
        self._write(as_json("".join(self._parts), self._allowed))

    def cut(self) -> None:
        self._write("".join(self._parts).strip())


class _TextOrNull:
    """A string from the first character on that cannot belong to a null."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._text = _Text(calls)
        self._held: str | None = ""

    def write(self, text: str) -> None:
        if self._held is not None:
            text = self._held + text
            blank = text.strip().lower()
            if len(text) < 100 and any(word.startswith(blank) for word in ("null", "none")):
                self._held = text
                return
            self._held = None
        self._text.write(text)

    def end(self) -> None:
        if self._held is None:
            self._text.end()
        else:
            self._calls.write(as_json(self._held, frozenset({"string", "null"})))

    def cut(self) -> None:
        self._calls.write((self._held or "").strip())


_Value = _Text | _Typed | _TextOrNull


def _value(calls: Calls, allowed: frozenset[str]) -> _Value:
    if allowed <= STRING:
        return _Text(calls)
    return _TextOrNull(calls) if allowed == {"string", "null"} else _Typed(calls, allowed)
