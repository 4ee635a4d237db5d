"""Merging of ``allOf`` schemas, since xgrammar enforces only the last schema of an ``allOf``.

Schemas that cannot be merged, such as two patterns, are left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eaglegate.text.parsing.schemas import resolve, walk_schema

MOST_SCHEMAS = 2000
"""Maximum number of schemas visited: references can multiply a small schema without limit."""
_MAX_DEPTH = 64
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "$comment", "deprecated"))
_LOWER_BOUNDS = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_UPPER_BOUNDS = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))
_ALONE = frozenset(("$ref", "anyOf", "oneOf", "allOf"))
"""xgrammar ignores assertions next to one of these keywords."""
_NEUTRAL = _ANNOTATIONS | {"$defs", "definitions"}


class _Unmergeable(Exception):
    """The schemas cannot be merged into one."""


class _TooMuch(Exception):
    """The schema exceeds the limit on visited schemas or depth."""


def merge_all_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Merge every ``allOf`` that can be merged. The result matches the same values."""
    try:
        result = _Merger(schema).read(schema, 0)
    except _TooMuch:
        return schema
    return result if isinstance(result, dict) else schema


class _Merger:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._budget = MOST_SCHEMAS

    def read(self, schema: Any, depth: int) -> Any:
        self._budget -= 1
        if self._budget < 0 or depth > _MAX_DEPTH:
            raise _TooMuch
        if not isinstance(schema, dict):
            return schema
        expanded_schema = walk_schema(schema, lambda part: self.read(part, depth + 1))
        if not isinstance(expanded_schema.get("allOf"), list) or not expanded_schema["allOf"]:
            return expanded_schema
        try:
            return self._merge_parts(expanded_schema, depth)
        except _Unmergeable:
            return expanded_schema

    def _merge_parts(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        result = {name: part for name, part in schema.items() if name != "allOf"}
        for part in schema["allOf"]:
            result = self._merge(result, self._resolve(part, depth + 1), depth + 1)
        return result

    def _resolve(self, part: Any, depth: int) -> dict[str, Any]:
        """Return the schema itself, or the target if it is a reference."""
        if isinstance(part, dict) and part.keys() - _NEUTRAL == {"$ref"}:
            part = self.read(resolve(part["$ref"], self._root), depth)
        if not isinstance(part, dict):
            raise _Unmergeable
        return part

    def _merge(self, base: dict[str, Any], addition: dict[str, Any], depth: int) -> dict[str, Any]:
        for first, second in ((base, addition), (addition, base)):
            if first.keys() & _ALONE and second.keys() - _NEUTRAL:
                raise _Unmergeable
            _check_additional(first, second)
        result = dict(base)
        for name, value in addition.items():
            result[name] = self._combine(name, base[name], value, depth) if name in base else value
        return result

    def _combine(self, name: str, base: Any, addition: Any, depth: int) -> Any:
        if base == addition or name in _ANNOTATIONS:
            return base
        if name in ("properties", "$defs", "definitions"):
            return self._combine_maps(base, addition, depth)
        if name == "required":
            return list(dict.fromkeys([*base, *addition]))
        if name == "type":
            return _intersect(base, addition)
        if name in _LOWER_BOUNDS:
            return max(base, addition)
        if name in _UPPER_BOUNDS:
            return min(base, addition)
        raise _Unmergeable

    def _combine_maps(
        self, base: dict[str, Any], addition: dict[str, Any], depth: int
    ) -> dict[str, Any]:
        common = {
            name: self._merge(self._resolve(base[name], depth), self._resolve(part, depth), depth)
            for name, part in addition.items()
            if name in base and base[name] != part
        }
        return {**base, **addition, **common}


def _check_additional(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Raise _Unmergeable if ``first`` restricts properties that only ``second`` names."""
    additional = first.get("additionalProperties", True)
    names = first.get("properties", {}).keys()
    if additional is not True and not second.get("properties", {}).keys() <= names:
        raise _Unmergeable


def _intersect(base: Any, addition: Any) -> Any:
    """Return the types that both schemas allow. Every integer is a number."""
    first, second = (
        {types} if isinstance(types, str) else set(types) for types in (base, addition)
    )
    common = first & second
    if "integer" in first | second and "number" in first | second:
        common |= {"integer"}
    if not common:
        raise _Unmergeable
    return common.pop() if len(common) == 1 else sorted(common)
