"""JSON arguments out of parameters that a model writes as text: XML-like, GLM, pythonic.

The tool's schema says what a parameter's text means. Where it can only be a string, the JSON
string is written as the text comes. Everything else is written when the parameter is closed,
since ``12`` is not known to be a number before that.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Mapping
from itertools import pairwise
from json.encoder import encode_basestring
from typing import Any, Self

from eaglegate.text.events import Repair
from eaglegate.text.parsing.markers import Delimiters
from eaglegate.text.parsing.output import Calls
from eaglegate.text.parsing.reader import Ended, Subroutine, Until
from eaglegate.text.parsing.schemas import STRING
from eaglegate.text.parsing.tools import parse_object, read_json

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_KEY = re.compile(r"""[^\s<>"'={}]{1,256}""")
"""Name of a parameter that the tool does not have. Any other name makes its tag a broken one."""
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
WRAPPERS = frozenset({"arguments", "args", "parameters", "params", "input", "kwargs", "properties"})
"""Names under which models put all arguments together, whatever the tool's schema says."""


def as_json(text: str, allowed: frozenset[str]) -> str:
    """The JSON text of a parameter's text, as written where that is JSON of an allowed type.

    What fits no allowed type becomes a string: nothing is lost, and the outcome shows it.
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


def unquote_value(text: str, allowed: frozenset[str]) -> str | None:
    """A value in quotes as what its type says; None where the quotes may be meant."""
    written = text.strip()
    if "string" in allowed or len(written) < 2 or written[0] != '"' or written[-1] != '"':
        return None
    try:
        said = json.loads(written)
    except (ValueError, RecursionError):
        return None
    found = as_json(said, allowed) if isinstance(said, str) else '"'
    return None if found.startswith('"') else found


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
        read_json(written)
        return written
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(written)
        if _joins_strings(written):
            return ""
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""


_ELEMENT = re.compile(r"<(?P<key>[\w.-]{1,64})>\n?(?P<value>.*?)\n?</(?P=key)>", re.DOTALL)
"""A parameter that a model has written as an element of its name."""


def _joins_strings(written: str) -> bool:
    """Whether two strings stand side by side, which Python joins: a comma is missing."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(written).readline))
    except (tokenize.TokenError, SyntaxError):
        return False
    kinds = [token.type for token in tokens if token.type != tokenize.NL]
    return any(pair == (tokenize.STRING, tokenize.STRING) for pair in pairwise(kinds))


class ArgumentsWriter:
    """Writes the arguments of the open call, parameter by parameter.

    Left when the call is finished, and with it the object, or where the output ends: an open value
    goes out as it was written. A model that stopped between two parameters had no more to say.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tool = calls.tool
        self.properties: Mapping[str, Any] = self._tool.properties if self._tool else {}
        self.given: set[str] = set()
        """The parameters begun so far."""
        self._texts: dict[str, list[str]] = {}
        self._parts: list[str] = []
        self._value: _Value | None = None
        self._verbatim = False

    @property
    def is_empty(self) -> bool:
        """Whether there are none so far."""
        return not self.given and not self._verbatim

    @property
    def text(self) -> str:
        """The open parameter's, so far."""
        return "".join(self._parts)

    def allowed(self, key: str) -> frozenset[str]:
        """The types the schema allows for a parameter."""
        return self._tool.kinds(key) if self._tool else STRING

    def key(self, key: str) -> None:
        """The next parameter, whose value the caller writes."""
        self._calls.write((", " if self.given else "{") + encode_basestring(key) + ": ")
        self.given.add(key)

    def begin(self, key: str, allowed: frozenset[str] | None = None) -> None:
        """The next parameter, of the types the schema allows unless the format says which."""
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
        self._value = _value(self._calls, self.allowed(key) if allowed is None else allowed)
        if allowed is not None and "string" not in allowed and self.allowed(key) > STRING:
            self._value = _Said(self._calls, allowed)
        self._texts[key] = self._parts

    def wraps(self, key: str) -> bool:
        """Whether all arguments may stand in this one, which the tool does not have."""
        known = self._tool is not None and bool(self.properties)
        return known and not self.given and key in WRAPPERS and key not in self.properties

    def write(self, text: str) -> None:
        """A piece of the parameter's text."""
        assert self._value is not None
        self._parts.append(text)
        self._value.write(text)

    def end(self) -> None:
        """The parameter is closed."""
        if self._value is not None:
            self._value.end()
        self._value = None

    def unwrap(self, key: str, text: str) -> None:
        """The object in ``text`` as the arguments, where the parameter ``key`` holds one."""
        written = _container(text.strip())
        inner = parse_object(written)
        if inner is None or not self._calls.repairing:
            self.key(key)
            self._calls.write(as_json(text, STRING if inner is None else frozenset({"object"})))
            return
        self._calls.repair(Repair.WRAPPER)
        self._calls.keep_raw(text)
        if inner:
            self._calls.write(written[:-1].rstrip())
            self.given.update(inner)

    def verbatim(self, text: str) -> None:
        """Write text that is no parameter as it stands. The arguments are no object then."""
        self._verbatim = True
        self._calls.write(text)

    def write_whole(self, text: str) -> None:
        """A piece of the object that holds all arguments."""
        self._verbatim = True
        self._calls.write_json(text)

    def loose(self, delimiters: Delimiters, *parameters: str, before: str = "") -> Subroutine:
        """Read the text before the first of ``parameters``, or in place of all of them."""
        parts = [before]
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
        """Whether the text is elements that have the names of parameters, which are written."""
        found = list(_ELEMENT.finditer(text))
        keys = {element["key"] for element in found}
        is_whole = not _ELEMENT.sub("", text).strip() and len(keys) == len(found)
        if not found or not is_whole or not keys <= self.properties.keys():
            return False
        for element in found:
            self.begin(element["key"])
            self.write(element["value"])
            self.end()
        return True

    def distrust(self, text: str) -> None:
        """Text where a parameter is expected may be one whose tags are broken."""
        if text.strip():
            self._calls.spoil()

    def inline(self, text: str) -> None:
        """Some models write an object after all, in a format that has parameters.

        Other text may be a parameter whose tags are broken: the call lacks it.
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

    def truncate(self) -> None:
        """Everything has been written."""


class _Whole:
    """A value that is nothing before it is whole."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def write(self, text: str) -> None:
        self._parts.append(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)


class _Repeated(_Whole):
    """A parameter that is there already: its text is not written again.

    The first has been delivered, so that it stands; another text makes the call malformed.
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
        """Drop the value: an unfinished one says nothing."""


class _Wrapped(_Whole):
    """A parameter that may hold all arguments: its whole text decides."""

    def __init__(self, arguments: ArgumentsWriter, key: str) -> None:
        super().__init__()
        self._arguments = arguments
        self._key = key

    def end(self) -> None:
        self._arguments.unwrap(self._key, self.text)

    def truncate(self) -> None:
        self._arguments.verbatim(self.text.strip())


class _Typed(_Whole):
    """A value whose type its whole text decides."""

    def __init__(self, calls: Calls, allowed: frozenset[str]) -> None:
        super().__init__()
        self._calls = calls
        self._write = calls.write
        self._allowed = allowed

    def end(self) -> None:
        text = self.text
        inner = unquote_value(text, self._allowed) if self._calls.repairing else None
        if inner is not None:
            self._calls.repair(Repair.QUOTED_VALUE)
            self._calls.keep_raw(text)
        self._write(as_json(text, self._allowed) if inner is None else inner)

    def truncate(self) -> None:
        self._write(self.text.strip())


class _Said(_Typed):
    """A value whose type the model names: what is of another contradicts that."""

    def end(self) -> None:
        super().end()
        if as_json(self.text, self._allowed).startswith('"'):
            self._calls.spoil()


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

    def truncate(self) -> None:
        self._calls.write((self._held or "").strip())


_Value = _Text | _Typed | _TextOrNull | _Repeated | _Wrapped


def _value(calls: Calls, allowed: frozenset[str]) -> _Value:
    if allowed <= STRING:
        return _Text(calls)
    return _TextOrNull(calls) if allowed == {"string", "null"} else _Typed(calls, allowed)
