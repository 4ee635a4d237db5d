"""How much work it is to check a value against a schema: counted, so that it can be bounded.

A schema that comes with a request can be small and still cost hours: ten definitions that each
refer to the next one twice look at a value a thousand times. A check visits pairs of a schema and
a value; here the visits are counted without making them, each pair once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from server.parsing.schemas import resolve

MAX_WORK = 300_000
"""Visits of one check: some 15 ms."""
MAX_PAIRS = 1500
"""Pairs of schema and value that are counted one by one: some 8 ms."""
MAX_LOOKS = 20_000
"""Members and items that are looked at to find those pairs: some 8 ms."""
MAX_VALUES = 30_000
"""Values in the arguments of a call."""
MAX_PARTS = 1500
"""Parts of a schema that is compiled, a pattern being twenty."""
_UNCOUNTED = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$anchor", "$id", "id")
"""Keywords that change what a reference means."""


class TooMuchWork(Exception):
    """A check that is not worth its time."""


_LISTED = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else", "propertyNames")
_COSTLY = frozenset(
    (*_LISTED, *_SINGLE, "$ref", "dependentSchemas", "dependencies", "patternProperties")
) | {"pattern", "enum"}
"""Keywords that look at a value more than once, or for longer than a look."""


@dataclass(frozen=True, slots=True)
class SchemaSize:
    """``costly``: the work of a check does not follow from the number of values."""

    num_parts: int
    costly: bool

    @property
    def is_compilable(self) -> bool:
        return self.num_parts <= MAX_PARTS


def measure_schema(schema: Any) -> SchemaSize:
    """Counts no further than it must."""
    num, costly, waiting = 0, False, [schema]
    while waiting and num <= MAX_PARTS:
        part = waiting.pop()
        if isinstance(part, dict):
            num += 20 if "pattern" in part else 1
            patterns = part.get("patternProperties")
            num += 20 * len(patterns) if isinstance(patterns, dict) else 0
            costly = costly or not _COSTLY.isdisjoint(part)
            waiting.extend(part.values())
        elif isinstance(part, list):
            num += len(part)
            waiting.extend(part)
    return SchemaSize(num, costly)


def num_values(value: Any) -> int:
    """The values inside ``value``, counted no further than MAX_VALUES."""
    num, waiting = 0, [value]
    while waiting and num <= MAX_VALUES:
        part = waiting.pop()
        num += 1
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return num


class Effort:
    """Counts the visits of one check."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._counts: dict[tuple[int, int], int] = {}
        self._looks = 0

    def measure(self, value: Any) -> int:
        """Raises TooMuchWork where counting itself is too much, or does not end."""
        return self._visit(self._root, value)

    def _visit(self, schema: Any, value: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        pair = id(schema), id(value)
        if pair in self._counts:
            if not self._counts[pair]:
                raise TooMuchWork("a schema that applies itself to the same value")
            return self._counts[pair]
        if len(self._counts) >= MAX_PAIRS:
            raise TooMuchWork("too many schemas for one value")
        self._counts[pair] = 0
        if "patternProperties" in schema and isinstance(value, dict):
            self._look(len(value))
        work = _weight(schema, value)
        work += sum(self._visit(part, value) for part in self._in_place(schema))
        for part, inner in _inside(schema, value):
            self._look(1)
            work += self._visit(part, inner)
        self._counts[pair] = work
        return work

    def _look(self, num: int) -> None:
        self._looks += num
        if self._looks > MAX_LOOKS:
            raise TooMuchWork("too many values for so many schemas")

    def _in_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        if any(name in schema and isinstance(schema[name], str) for name in _UNCOUNTED):
            raise TooMuchWork("references by name are not followed")
        for name in _LISTED:
            yield from schema[name] if isinstance(schema.get(name), list) else ()
        for name in _SINGLE:
            yield schema.get(name)
        for name in ("dependentSchemas", "dependencies"):
            yield from schema[name].values() if isinstance(schema.get(name), dict) else ()
        if "$ref" in schema:
            yield resolve(schema["$ref"], self._root)


def _weight(schema: Mapping[str, Any], value: Any) -> int:
    """A visit by itself: keywords, values to compare, characters for a pattern to read."""
    work = 1 + len(schema)
    if isinstance(schema.get("enum"), list):
        work += len(schema["enum"])
    if isinstance(value, str) and "pattern" in schema:
        work += len(value)
    patterns = schema.get("patternProperties")
    if isinstance(value, dict) and isinstance(patterns, dict):
        work += len(patterns) * sum(map(len, value))
    if schema.get("uniqueItems") and isinstance(value, list):
        work += 10 * len(value)
    return work


def _inside(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from _members(schema, value)
    elif isinstance(value, list):
        every = [schema.get(name) for name in ("items", "contains", "unevaluatedItems")]
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else schema.get("items")
        first = first if isinstance(first, list) else []
        for part in filter(_is_schema, every):
            yield from ((part, inner) for inner in value)
        yield from zip(first, value, strict=False)


def _members(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    known = schema.get("properties")
    known = known if isinstance(known, dict) else {}
    others = [
        part
        for name in ("additionalProperties", "unevaluatedProperties")
        if isinstance(part := schema.get(name), dict)
    ]
    patterns = schema.get("patternProperties")
    others += patterns.values() if isinstance(patterns, dict) else ()
    if len(known) < len(value):
        yield from ((known[name], value[name]) for name in known if name in value)
    else:
        yield from ((known[name], value[name]) for name in value if name in known)
    for part in others:
        yield from ((part, inner) for inner in value.values())


def _is_schema(part: Any) -> bool:
    return isinstance(part, dict)
