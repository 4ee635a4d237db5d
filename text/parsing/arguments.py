"""JSON arguments from parameters that a model writes as text: XML-like, GLM, pythonic.

The tool's schema says what a parameter's text means. If the parameter can only be a string, the
JSON string is written as the text arrives. Every other value is written when the parameter is
closed, because ``12`` is not known to be a number before that.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from json.encoder import encode_basestring
from typing import Any, Self

from eaglegate.text.events import Repair
from eaglegate.text.parsing.markers import Delimiters
from eaglegate.text.parsing.output import Calls
from eaglegate.text.parsing.reader import Ended, Subroutine, Until
from eaglegate.text.parsing.schemas import STRING
from eaglegate.text.parsing.tools import WRAPPERS, parse_object, read_json

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_KEY = re.compile(r"""[^\s<>"'={}]{1,256}""")
"""Plausible name of a parameter that the tool does not have. Any other name means a broken tag."""
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def as_json(text: str, types: frozenset[str]) -> str:
    """Return a parameter's text as JSON, unchanged if it is JSON of an allowed type.

    Text that fits no allowed type becomes a string: nothing is lost, and the outcome shows it. Only
    ``null`` stays null, because models write it for a parameter that they leave out.
    """
    literal = text.strip()
    word = _WORDS.get(literal.lower(), "")
    if word == "null" and ("null" in types or "string" not in types):
        return word
    if word in ("true", "false") and "boolean" in types:
        return word
    if types & {"integer", "number"} and (number := _number(literal, "number" in types)):
        return number
    if literal[:1] in ("{", "[") and types & {"object", "array"}:
        return _container(literal) or encode_basestring(text)
    return encode_basestring(text)


def repeats_member(json_text: str) -> bool:
    """Return True if a JSON object has a member twice, with two values."""
    try:
        pairs = json.loads(json_text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return False
    values: dict[str, Any] = {}
    return any(values.setdefault(key, value) != value for key, value in pairs)


def unquote_value(text: str, types: frozenset[str]) -> str | None:
    """Return a quoted value as JSON of its type; None if the quotes may be meant."""
    literal = text.strip()
    if "string" in types or len(literal) < 2 or literal[0] != '"' or literal[-1] != '"':
        return None
    try:
        value = json.loads(literal)
    except (ValueError, RecursionError):
        return None
    json_value = as_json(value, types) if isinstance(value, str) else '"'
    return None if json_value.startswith('"') else json_value


def _number(text: str, fractions: bool) -> str:
    """Return a number as written if that is JSON, else as Python reads it; "" for other text."""
    try:
        value = float(text)
    except ValueError:
        return ""
    if not math.isfinite(value) or "_" in text or not (fractions or value.is_integer()):
        return ""
    return text if _NUMBER.match(text) else json.dumps(int(value) if value.is_integer() else value)


def _container(text: str) -> str:
    """Return an object or array as written, or as JSON if it is a Python literal; else ""."""
    try:
        read_json(text)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text)
        if _joins_strings(text):
            return ""
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""


_ELEMENT = re.compile(r"<(?P<key>[\w.-]{1,64})>\n?(?P<value>.*?)\n?</(?P=key)>", re.DOTALL)
"""Parameter that a model has written as an element with the parameter's name."""


def _joins_strings(text: str) -> bool:
    """Return True if two strings are adjacent. Python joins them, but a comma is missing."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return False
    kinds = [token.type for token in tokens if token.type != tokenize.NL]
    return any(pair == (tokenize.STRING, tokenize.STRING) for pair in pairwise(kinds))


class ArgumentsWriter:
    """Writer of the open call's arguments, parameter by parameter.

    A context manager. It is left when the call is finished, which closes the object, or when the
    output ends: then an open value is delivered as written. If the model itself stopped between
    two parameters, the object is closed as well.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tool = calls.tool
        self.properties: Mapping[str, Any] = self._tool.properties if self._tool else {}
        self.given: set[str] = set()
        """Parameters begun so far."""
        self._texts: dict[str, list[str]] = {}
        self._parts: list[str] = []
        self._value: _Value | None = None
        self._verbatim = False

    @property
    def is_empty(self) -> bool:
        """True if nothing has been written so far."""
        return not self.given and not self._verbatim

    @property
    def text(self) -> str:
        """Text of the open parameter so far."""
        return "".join(self._parts)

    def allowed(self, key: str) -> frozenset[str]:
        """Return the types that the schema allows for a parameter."""
        return self._tool.kinds(key) if self._tool else STRING

    def key(self, key: str) -> None:
        """Begin the next parameter; the caller writes its value."""
        self._calls.write((", " if self.given else "{") + encode_basestring(key) + ": ")
        self.given.add(key)

    def begin(self, key: str, types: frozenset[str] | None = None) -> None:
        """Begin the next parameter. ``types`` are allowed if the format states them."""
        self._parts = []
        if key not in self.properties and not _KEY.fullmatch(key):
            self._calls.spoil()
        if key in self.given:
            self._value = _Repeated(self._calls, self._texts.get(key, []))
            return
        if self.wraps(key):
            self._value = _Wrapped(self, key)
            return
        self.key(key)
        allowed = self.allowed(key) if types is None else types
        self._value = _value(self._calls, allowed)
        if self._tool and "string" in allowed and self._tool.restricts(key):
            self._value = _Restricted(self._calls, allowed, partial(self._tool.trim, key))
        if types is not None and "string" not in types and self.allowed(key) > STRING:
            self._value = _Declared(self._calls, types)
        self._texts[key] = self._parts

    def wraps(self, key: str) -> bool:
        """Return True if this parameter, which the tool does not have, may hold all arguments."""
        has_parameters = self._tool is not None and bool(self.properties)
        return has_parameters and not self.given and key in WRAPPERS and key not in self.properties

    def write(self, text: str) -> None:
        """Write a piece of the parameter's text."""
        assert self._value is not None
        self._parts.append(text)
        self._value.write(text)

    def end(self) -> None:
        """Close the parameter."""
        if self._value is not None:
            self._value.end()
        self._value = None

    def unwrap(self, key: str, text: str) -> None:
        """Write the object in the wrapper ``key`` as the arguments, or else write a parameter."""
        object_text = _container(text.strip())
        arguments = parse_object(object_text)
        if arguments is None or not self._calls.repairing:
            self.key(key)
            self._calls.write(as_json(text, STRING if arguments is None else frozenset({"object"})))
            return
        self._calls.repair(Repair.WRAPPER)
        self._calls.keep_raw(text)
        if arguments:
            self._calls.write(object_text[:-1].rstrip())
            self.given.update(arguments)

    def verbatim(self, text: str) -> None:
        """Write text outside parameters unchanged. The arguments are then not an object."""
        self._verbatim = True
        self._calls.write(text)

    def write_whole(self, text: str) -> None:
        """Write a piece of an object that holds all arguments."""
        self._verbatim = True
        self._calls.write_json(text)

    def loose(self, delimiters: Delimiters, *parameters: str, prefix: str = "") -> Subroutine:
        """Read the text before the first of ``parameters``, or in place of all of them."""
        parts = [prefix]
        try:
            marker = yield Until(delimiters, parts.append)
        except Ended:
            self.inline("".join(parts))
            raise
        text = "".join(parts)
        if self._read_elements(text):
            return marker
        if marker not in parameters:
            self.inline(text)
        else:
            self.distrust(text)
        return marker

    def _read_elements(self, text: str) -> bool:
        """Write elements named like parameters. Return False if the text is anything else."""
        elements = list(_ELEMENT.finditer(text))
        keys = {element["key"] for element in elements}
        is_whole = not _ELEMENT.sub("", text).strip() and len(keys) == len(elements)
        if not elements or not is_whole or not keys <= self.properties.keys():
            return False
        for element in elements:
            self.begin(element["key"])
            self.write(element["value"])
            self.end()
        return True

    def distrust(self, text: str) -> None:
        """Distrust text where a parameter is expected: it may be a parameter with broken tags."""
        if text.strip():
            self._calls.spoil()

    def inline(self, text: str) -> None:
        """Write an object that a model has put in place of parameters.

        Other text may be a parameter with broken tags, which the call then lacks.
        """
        if text.lstrip().startswith("{"):
            self.verbatim(text.strip())
        else:
            self.distrust(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Ended) and self._value is not None:
            self._value.truncate()
        elif error is None or (isinstance(error, Ended) and error.by_model):
            self._close()

    def _close(self) -> None:
        self.end()
        if not self._verbatim:
            self._calls.write("}" if self.given else "{}")


class _Text:
    """String that is escaped as it arrives."""

    def __init__(self, calls: Calls) -> None:
        self._write = calls.write
        self._opened = False

    def write(self, text: str) -> None:
        quotation = encode_basestring(text)
        self._write(quotation[1:-1] if self._opened else quotation[:-1])
        self._opened = True

    def end(self) -> None:
        self._write('"' if self._opened else '""')

    def truncate(self) -> None:
        """Do nothing: everything has been written."""


class _Whole:
    """Value that is written only when it is complete."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        self._parts.append(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)


class _Repeated(_Whole):
    """Repeated parameter, which is not written again.

    The first value has been delivered, so it counts. A different text makes the call malformed.
    """

    def __init__(self, calls: Calls, first: list[str]) -> None:
        super().__init__()
        self._calls = calls
        self._first = first

    def end(self) -> None:
        text = self.text
        if text != "".join(self._first):
            self._calls.spoil()
        self._calls.repair(Repair.REPEATED_PARAMETER)
        self._calls.keep_raw(text)

    def truncate(self) -> None:
        """Drop the value: an unfinished repetition is no evidence."""


class _Wrapped(_Whole):
    """Parameter that may hold all arguments, which only its whole text shows."""

    def __init__(self, arguments: ArgumentsWriter, key: str) -> None:
        super().__init__()
        self._arguments = arguments
        self._key = key

    def end(self) -> None:
        self._arguments.unwrap(self._key, self.text)

    def truncate(self) -> None:
        self._arguments.verbatim(self.text.strip())


class _Typed(_Whole):
    """Value whose type depends on its whole text."""

    def __init__(self, calls: Calls, allowed: frozenset[str]) -> None:
        super().__init__()
        self._calls = calls
        self._write = calls.write
        self._allowed = allowed

    def end(self) -> None:
        self._end(self.text)

    def _end(self, text: str) -> None:
        unquoted_value = unquote_value(text, self._allowed) if self._calls.repairing else None
        if unquoted_value is not None:
            self._calls.repair(Repair.QUOTED_VALUE)
            self._calls.keep_raw(text)
        self._write(as_json(text, self._allowed) if unquoted_value is None else unquoted_value)

    def truncate(self) -> None:
        self._write(self.text.strip())


class _Restricted(_Typed):
    """Value that may be a string which its schema restricts, so that white space matters."""

    def __init__(self, calls: Calls, allowed: frozenset[str], trim: Callable[[str], str]) -> None:
        super().__init__(calls, allowed)
        self._trim = trim

    def end(self) -> None:
        self._end(self._trim(self.text))

    def truncate(self) -> None:
        if self._allowed <= STRING:
            self._write(encode_basestring(self.text)[:-1])
        else:
            super().truncate()


class _Declared(_Typed):
    """Value whose type the model names. A value of another type makes the call malformed."""

    def end(self) -> None:
        super().end()
        if as_json(self.text, self._allowed).startswith('"'):
            self._calls.spoil()


class _TextOrNull:
    """String or null. It is written as a string once its text can no longer be a null."""

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

    def truncate(self) -> None:
        self._calls.write((self._held or "").strip())


_Value = _Text | _Typed | _TextOrNull | _Repeated | _Wrapped


def _value(calls: Calls, types: frozenset[str]) -> _Value:
    if types <= STRING:
        return _Text(calls)
    return _TextOrNull(calls) if types == {"string", "null"} else _Typed(calls, types)
