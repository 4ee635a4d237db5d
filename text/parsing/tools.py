"""The tools that a request offers, the check of a call's arguments, and custom tools.

No open model's template knows tools without a schema. A custom tool is therefore offered as a
function with the single argument ``input``, whose value is delivered as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from jsonschema_rs import (
    Draft202012Validator,
    ReferencingError,
    RegexOptions,
    ValidationError,
)

from eaglegate.text.events import Outcome
from eaglegate.text.parsing.json_scan import REPLACED, Unescaper
from eaglegate.text.parsing.markers import FRAGMENT
from eaglegate.text.parsing.schemas import (
    LONGEST_TRIMMED,
    MAX_VALUES,
    MAX_WORK,
    Effort,
    SchemaSize,
    TooMuchWork,
    additional,
    close_objects,
    kinds,
    measure_schema,
    modernise,
    normalise,
    num_values,
    properties,
    restricts,
)

WRAPPERS = frozenset({"arguments", "args", "parameters", "params", "input", "kwargs", "properties"})
"""Names under which models put all arguments together, regardless of the tool's schema."""
PROGRAM_BYTES = 1 << 16
"""Largest size of a compiled pattern. Matching time grows with it and with the text."""
_PATTERNS = RegexOptions(size_limit=PROGRAM_BYTES, dfa_size_limit=PROGRAM_BYTES)
"""Options for patterns without look-around and back references, which match in linear time."""


def parse_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None for anything else. NaN and Infinity are not JSON."""
    value = _parse(text)
    return value if isinstance(value, dict) else None


def is_container(text: str) -> bool:
    """Return True if ``text`` is a complete JSON object or array, which nothing can follow."""
    return isinstance(_parse(text), (dict, list))


def _parse(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


read_json = json.JSONDecoder(parse_constant=_refuse_constant).decode
"""Parse a JSON text. Raises ValueError, also for NaN and Infinity."""


class ToolSchema:
    """Schema of one offered function. Its validator is made on first use."""

    def __init__(self, name: str, parameters: Any) -> None:
        self.name = name
        self._given = parameters
        self._allowed: dict[str | None, frozenset[str]] = {}
        """Allowed types by parameter; None is any parameter that the schema does not name."""
        self._restricted: dict[str, bool] = {}
        self._validators: dict[str, Draft202012Validator | None] = {}
        """Validators of single parameters."""
        self._kinds: dict[int, frozenset[str]] = {}
        self._members: dict[int, tuple[Mapping[str, Any], Any]] = {}
        """Members by the id() of a part of the schema, which lives as long as this object."""

    @cached_property
    def _size(self) -> SchemaSize:
        return measure_schema(self._given)

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """Schema of the parameters, translated to JSON Schema's keywords unless it is too large."""
        schema = modernise(normalise(self._given)) if self._size.is_compilable else self._given
        return schema if isinstance(schema, dict) else {}

    @cached_property
    def _closed(self) -> dict[str, Any]:
        """Schema that arguments are checked against."""
        schema: dict[str, Any] = close_objects(dict(self.parameters))
        return schema

    @cached_property
    def properties(self) -> Mapping[str, Any]:
        """Schemas of each parameter."""
        return properties(self.parameters)

    @cached_property
    def _additional(self) -> Any:
        return additional(self.parameters)

    def kinds(self, parameter: str) -> frozenset[str]:
        """Return the JSON types that the schema allows for a parameter."""
        name = parameter if parameter in self.properties else None
        if name not in self._allowed:
            kinds_by_schema = map(self.find_kinds, self._find_schemas(parameter))
            self._allowed[name] = frozenset[str]().union(*kinds_by_schema)
        return self._allowed[name]

    def _find_schemas(self, parameter: str) -> list[Any]:
        return list(self.properties.get(parameter, [self._additional]))

    def restricts(self, parameter: str) -> bool:
        """Return True if white space around a parameter's string may violate its schema."""
        if parameter not in self._restricted:
            schemas = self._find_schemas(parameter)
            self._restricted[parameter] = any(restricts(part, self.parameters) for part in schemas)
        return self._restricted[parameter]

    def trim(self, parameter: str, text: str) -> str:
        """Return a parameter's text, without the white space around it if only then it matches.

        A grammar allows this white space, and the schema may not.
        """
        trimmed = text.strip()
        if trimmed == text or len(text) > LONGEST_TRIMMED or not self._size.is_compilable:
            return text
        if parameter not in self._validators:
            schema = {name: self.parameters.get(name, {}) for name in ("$defs", "definitions")}
            schema["anyOf"] = self._find_schemas(parameter)
            self._validators[parameter] = _make_validator(schema)
        validator = self._validators[parameter]
        if validator is None or validator.is_valid(text) or not validator.is_valid(trimmed):
            return text
        return trimmed

    def find_kinds(self, schema: Any) -> frozenset[str]:
        """Return the JSON types that a part of the schema allows, read once."""
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = kinds(schema, self.parameters)
        return self._kinds[id(schema)]

    def find_members(self, schema: Any) -> tuple[Mapping[str, Any], Any]:
        """Return the schemas of an object's members by name, and of unnamed members, read once."""
        if id(schema) not in self._members:
            self._members[id(schema)] = properties(schema), additional(schema)
        return self._members[id(schema)]

    @cached_property
    def _validator(self) -> Draft202012Validator | None:
        """Validator, or None if the schema cannot be applied."""
        return _make_validator(self._closed) if self._size.is_compilable else None

    def judge(self, arguments: Mapping[str, Any]) -> Outcome:
        """Check arguments against the schema; UNCHECKED if that takes too long."""
        if self._validator is None or not self._is_cheap(arguments):
            return Outcome.UNCHECKED
        try:
            is_valid = self._validator.is_valid(arguments)
        except (ValidationError, ReferencingError, ValueError):
            return Outcome.UNCHECKED
        return Outcome.VALID if is_valid else Outcome.SCHEMA_MISMATCH

    def _is_cheap(self, arguments: Mapping[str, Any]) -> bool:
        try:
            if not self._size.costly:
                return num_values(arguments) <= MAX_VALUES
            if not self._size.is_countable:
                return False
            return Effort(self._closed).measure(arguments) <= MAX_WORK
        except (TooMuchWork, RecursionError):
            return False


def _make_validator(schema: dict[str, Any]) -> Draft202012Validator | None:
    try:
        return Draft202012Validator(schema, retriever=_refuse_reference, pattern_options=_PATTERNS)
    except (ValidationError, ReferencingError, ValueError, RecursionError):
        return None


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"references are not fetched: {uri[:80]}")


class OfferedTools:
    """Offered tools by name. If ``offered`` is None, no call counts as unknown."""

    def __init__(self, tools: Collection[Mapping[str, Any]] | None) -> None:
        self._unstated = tools is None
        self._offered = tools or ()

    @cached_property
    def _by_name(self) -> dict[str, ToolSchema]:
        """Tools by name, made on the first call, because most answers have no call."""
        functions = [tool.get("function", tool) for tool in self._offered]
        return {
            name: ToolSchema(name, function.get("parameters"))
            for function in functions
            if isinstance(function, dict) and isinstance(name := function.get("name"), str)
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, longest first; empty if the tools are not known."""
        return tuple(sorted(self._by_name, key=len, reverse=True))

    def find(self, name: str) -> ToolSchema | None:
        return self._by_name.get(name)

    def judge(self, name: str, arguments: str) -> Outcome:
        """Return the outcome of a call that was written to its end."""
        tool = self.find(name)
        if tool is None and not self._unstated:
            return Outcome.UNKNOWN_TOOL
        members = parse_object(arguments)
        if members is None:
            return Outcome.MALFORMED
        return Outcome.VALID if tool is None else tool.judge(members)


ARGUMENT = "input"
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {ARGUMENT: {"type": "string"}},
    "required": [ARGUMENT],
    "additionalProperties": False,
}

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')


class FreeText:
    """Text of a custom tool's argument. ``write`` returns the new text, ``end`` the rest."""

    __slots__ = ("_held", "_text")

    def __init__(self) -> None:
        self._held = ""
        """Arguments before the text begins."""
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
        text = self._text.write(arguments)
        return text[: -len(self._text.left)] if self._text.left else text

    def end(self) -> str:
        """Return the rest of the text.

        If the arguments have another shape, it is the value of ``input``, or the arguments as
        written.
        """
        if self._text is not None:
            return ""
        source = self._held
        try:
            value = json.loads(source)
        except (ValueError, RecursionError):
            return source
        if isinstance(value, dict) and isinstance(text := value.get(ARGUMENT, ""), str):
            return "".join(_replace_surrogate(char, source) for char in text)
        return source


def _replace_surrogate(char: str, source: str) -> str:
    """Replace a lone surrogate in decoded text, unless it is a FRAGMENT that was written."""
    is_lone = "\ud800" <= char <= "\udfff" and not (char == FRAGMENT and FRAGMENT in source)
    return REPLACED if is_lone else char
