"""JSON schemas of tools: their meaning, the types they allow, and the cost of a check.

Clients write ``float``, ``dict`` or ``nullable: true`` where JSON Schema says ``number``,
``object`` or ``["string", "null"]``. A schema is read as it is meant, both for converting
parameters to JSON and for judging a call.

A small schema can cost hours: ten definitions that each refer to the next one twice visit a value a
thousand times. A check visits pairs of a schema and a value. ``Effort`` counts the visits without
making them, each pair once, so that the count itself is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

ALIASES: Mapping[str, str] = {
    "bool": "boolean",
    "char": "string",
    "date": "string",
    "datetime": "string",
    "decimal": "number",
    "dict": "object",
    "dictionary": "object",
    "double": "number",
    "enum": "string",
    "float": "number",
    "hash": "object",
    "int": "integer",
    "int32": "integer",
    "int64": "integer",
    "list": "array",
    "long": "integer",
    "map": "object",
    "none": "null",
    "set": "array",
    "str": "string",
    "text": "string",
    "tuple": "array",
    "uint": "integer",
    "varchar": "string",
}
"""Names of JSON's types in other languages."""
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING = frozenset({"string"})
MAX_DEPTH = 16
MAX_MODERNISED = 64
"""Number of levels of a schema that are translated from an older draft."""
_VALUES = ("const", "enum", "default", "examples", "example")
"""Keywords whose content is not a schema."""


_SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)
_SCHEMA_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems", "items"))
_SCHEMA_SINGLE = frozenset((
    "items", "additionalItems", "additionalProperties", "unevaluatedItems",
    "unevaluatedProperties", "contains", "propertyNames", "not", "if", "then", "else",
))  # fmt: skip
_ANCHOR = re.compile(r"#([A-Za-z_][-A-Za-z0-9._]*)")
_LATEST = "https://json-schema.org/draft/2020-12/schema"


def walk_schema(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of ``schema`` with ``change`` applied to each subschema."""
    copy = dict(schema)
    for name, part in schema.items():
        if name in _SCHEMA_MAPS and isinstance(part, dict):
            copy[name] = {key: change(part_value) for key, part_value in part.items()}
        elif name in _SCHEMA_LISTS and isinstance(part, list):
            copy[name] = [change(part_value) for part_value in part]
        elif name in _SCHEMA_SINGLE and isinstance(part, dict):
            copy[name] = change(part)
    return copy


def modernise(schema: Any, depth: int = 0) -> Any:
    """Translate a schema of an older draft to draft 2020-12.

    This concerns tuples in ``items``, boolean exclusive bounds, and ids that are fragments.
    """
    if not isinstance(schema, dict) or depth > MAX_MODERNISED:
        return schema
    translation = walk_schema(schema, lambda part: modernise(part, depth + 1))
    # Drafts before 2020-12: ``items`` as a list is a tuple, and ``additionalItems`` follow it.
    if isinstance(translation.get("items"), list):
        translation["prefixItems"] = translation.pop("items")
        if "additionalItems" in translation:
            translation["items"] = translation.pop("additionalItems")
    # Draft 4: ``exclusiveMinimum: true`` makes ``minimum`` exclusive, and false says nothing.
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if (
            isinstance(translation.get(exclusive), bool)
            and translation.pop(exclusive)
            and bound in translation
        ):
            translation[exclusive] = translation.pop(bound)
    _modernise_id(translation)
    return translation


def _modernise_id(schema: dict[str, Any]) -> None:
    """Replace an id that is a fragment, as in drafts before 2019-09, by an anchor."""
    if isinstance(identifier := schema.get("$id"), str) and identifier.startswith("#"):
        del schema["$id"]
        if anchor := _ANCHOR.fullmatch(identifier):
            schema["$anchor"] = anchor[1]
    if isinstance(schema.get("$schema"), str) and schema["$schema"].rstrip("#") != _LATEST:
        del schema["$schema"]


def normalise(schema: Any, depth: int = 0) -> Any:
    """Translate a schema to JSON Schema's own keywords. An unknown type is dropped."""
    if isinstance(schema, list):
        return [normalise(part, depth + 1) for part in schema]
    if not isinstance(schema, dict) or depth > 64:
        return schema
    translation = {
        name: part if name in _VALUES else normalise(part, depth + 1)
        for name, part in schema.items()
    }
    if isinstance(schema.get("type"), str | list):
        types = _types(schema["type"])
        if not types:
            del translation["type"]
        elif types != schema["type"]:
            translation["type"] = types
    if translation.get("nullable") is True:
        _allow_null(translation)
    return translation


def _types(value: str | list[Any]) -> str | list[Any]:
    """Translate ``type`` to JSON Schema's names, as one name or a list as given."""
    if isinstance(value, str):
        name = value.strip().lower()
        name = ALIASES.get(name, name)
        return name if name in TYPES else ""
    types = [_types(item) for item in value if isinstance(item, str)]
    return list(dict.fromkeys(item for item in types if item))


def _allow_null(schema: dict[str, Any]) -> None:
    """Apply OpenAPI's ``nullable``."""
    types = schema.get("type")
    if isinstance(types, str):
        schema["type"] = [types, "null"]
    elif isinstance(types, list) and "null" not in types:
        schema["type"] = [*types, "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


def resolve(reference: Any, root: Any) -> Any:
    """Resolve a reference inside ``root``; return None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target = root
    for step in reference[1:].split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and step.isdecimal() and len(step) < 6:
            target = target[int(step)] if int(step) < len(target) else None
        else:
            target = target.get(step) if isinstance(target, dict) else None
    return target if reference == "#" or reference.startswith("#/") else None


def find_cycle(root: Any) -> str:
    """Return a reference of ``root`` that leads back to its own place without a value in between,
    or an empty string.

    No text matches ``{"$ref": "#"}``, and a grammar for it fails while it is matched.
    """
    finished_ids: set[int] = set()
    stack = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if reference := _find_cycle_at(part, root, finished_ids):
                return reference
            stack += part.values()
        elif isinstance(part, list):
            stack += part
    return ""


def _find_cycle_at(start: dict[str, Any], root: Any, finished_ids: set[int]) -> str:
    """Search depth first, without recursion: references make paths of any length."""
    path: set[int] = set()
    stack: list[tuple[Any, str, bool]] = [(start, "", False)]
    while stack:
        part, reference, is_left = stack.pop()
        if is_left:
            path.discard(id(part))
            finished_ids.add(id(part))
        elif id(part) in path:
            return reference
        elif isinstance(part, dict) and id(part) not in finished_ids:
            path.add(id(part))
            stack.append((part, reference, True))
            if isinstance(target := part.get("$ref"), str):
                stack.append((resolve(target, root), target, False))
            for name in ("allOf", "anyOf", "oneOf"):
                branches = part.get(name)
                if isinstance(branches, list):
                    stack += [(branch, reference, False) for branch in branches]
    return ""


_COMPOSED = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
"""Keywords that say which unnamed members an object may have."""
_MEMBERS = ("properties", "patternProperties")
_IN_PLACE = ("$defs", "definitions", "dependentSchemas", "allOf", "anyOf", "oneOf", "then", "else")
_HELD = ("items", "prefixItems", "additionalItems", "additionalProperties")


def close_objects(schema: Any, root: Any = None, is_alone: bool = True, depth: int = 0) -> Any:
    """Close the objects that name their members and do not mention others.

    Grammars treat such a schema in the same way. ``is_alone``: no other schema adds members.
    """
    if not isinstance(schema, dict) or depth > 64:
        return schema
    top = schema if root is None else root
    copy = dict(schema)
    for name, part in schema.items():
        if name in _MEMBERS or name in _HELD:
            copy[name] = _close_each(part, name in _MEMBERS, top, True, depth)
        elif name in _IN_PLACE:
            is_map = name in _SCHEMA_MAPS
            copy[name] = _close_each(part, is_map, top, False, depth)
    if is_alone and _is_closed(schema, top, is_root=root is None):
        is_composed = any(name in schema for name in _COMPOSED)
        copy["unevaluatedProperties" if is_composed else "additionalProperties"] = False
    return copy


def _close_each(part: Any, is_map: bool, root: Any, is_alone: bool, depth: int) -> Any:
    if isinstance(part, list):
        return [close_objects(part_value, root, is_alone, depth + 1) for part_value in part]
    if is_map and isinstance(part, dict):
        return {
            key: close_objects(part_value, root, is_alone, depth + 1)
            for key, part_value in part.items()
        }
    return part if is_map else close_objects(part, root, is_alone, depth + 1)


def _is_closed(schema: Any, root: Any, is_root: bool) -> bool:
    """Return True if an object may have only the members that its schema names."""
    parts = list(_alternatives(schema, root, 0, set()))
    if any(name in part for part in parts for name in _OPEN):
        return False
    properties_maps = [
        part["properties"] for part in parts if isinstance(part.get("properties"), dict)
    ]
    any_object = any(part.keys() <= _PLAIN and "object" in _find_types(part) for part in parts)
    return (
        bool(properties_maps)
        and (is_root or any(properties_maps))
        and (not any_object or len(parts) == 1)
    )


_PLAIN = frozenset({"type", "title", "description", "nullable", "default", "examples"})
"""Keywords that restrict no object: a schema of these alone allows what its type allows."""


def properties(root: Any) -> dict[str, list[Any]]:
    """Return the schemas of each parameter, from the root, its branches and its references."""
    schemas: dict[str, list[Any]] = {}
    for part in _alternatives(root, root, 0, set()):
        members = part.get("properties")
        for name, schema in members.items() if isinstance(members, dict) else ():
            schemas.setdefault(name, []).append(schema)
    return schemas


def additional(root: Any) -> Any:
    """Return the schema of parameters that no property names; None if there is none."""
    for part in _alternatives(root, root, 0, set()):
        if isinstance(part.get("additionalProperties"), dict):
            return part["additionalProperties"]
    return None


LONGEST_TRIMMED = 1000
"""Longest text that is checked with and without the white space around it."""
_RESTRICTIONS = frozenset(("enum", "const", "pattern", "format"))


def restricts(schema: Any, root: Any) -> bool:
    """Return True if white space around a short string may violate a schema."""
    for part in _alternatives(schema, root, 0, set()):
        limit = part.get("maxLength")
        is_short = isinstance(limit, int) and limit <= LONGEST_TRIMMED
        if is_short or not _RESTRICTIONS.isdisjoint(part):
            return True
    return False


def _alternatives(
    schema: Any, root: Any, depth: int, visited_ids: set[int]
) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its branches and references, each once."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH or id(schema) in visited_ids:
        return
    visited_ids.add(id(schema))
    yield schema
    for part in _branches(schema, "allOf", "anyOf", "oneOf"):
        yield from _alternatives(part, root, depth + 1, visited_ids)
    if "$ref" in schema:
        yield from _alternatives(resolve(schema["$ref"], root), root, depth + 1, visited_ids)


def _branches(schema: Mapping[str, Any], *keywords: str) -> list[Any]:
    return [part for name in keywords for part in (schema[name] if _is_list(schema, name) else ())]


def _is_list(schema: Mapping[str, Any], name: str) -> bool:
    return isinstance(schema.get(name), list)


def kinds(schema: Any, root: Any = None) -> frozenset[str]:
    """Return the JSON types a schema allows: all if it names none, a string without a schema."""
    if schema is None:
        return STRING
    return _find_kinds(schema, schema if root is None else root, 0, {}) or TYPES


def _find_kinds(
    schema: Any, root: Any, depth: int, kinds_by_id: dict[int, frozenset[str]]
) -> frozenset[str]:
    """Return the types a schema allows, or none if it names none. Each schema is read once."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return frozenset()
    if id(schema) not in kinds_by_id:
        # A schema that refers to itself meets this entry, and adds no type.
        kinds_by_id[id(schema)] = frozenset()
        kinds_by_id[id(schema)] = _read_kinds(schema, root, depth + 1, kinds_by_id)
    return kinds_by_id[id(schema)]


def _read_kinds(
    schema: Mapping[str, Any], root: Any, depth: int, kinds_by_id: dict[int, frozenset[str]]
) -> frozenset[str]:
    if types := _find_types(schema):
        return types
    branch_kinds = [
        _find_kinds(part, root, depth, kinds_by_id) for part in _branches(schema, "anyOf", "oneOf")
    ]
    if branch_kinds and all(branch_kinds):  # a branch that names no type allows every one
        return frozenset[str]().union(*branch_kinds)
    target = resolve(schema["$ref"], root) if "$ref" in schema else None
    if types := _find_kinds(target, root, depth, kinds_by_id):
        return types
    for part in _branches(schema, "allOf"):
        if types := _find_kinds(part, root, depth, kinds_by_id):
            return types
    return _infer_types(schema)


def _find_types(schema: Mapping[str, Any]) -> frozenset[str]:
    value = schema.get("type")
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    types = frozenset(name for name in names if isinstance(name, str))
    if types:
        return types
    if "const" in schema:
        return frozenset([_kind(schema["const"])])
    return frozenset(map(_kind, schema["enum"])) if _is_list(schema, "enum") else types


def _infer_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Infer types from keywords that apply to only one type."""
    if "properties" in schema or "required" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if {"items", "prefixItems"} & schema.keys() else frozenset()


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    by_type = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return by_type.get(type(value), "object")


MAX_WORK = 300_000
"""Limit on the visits of one check, about 15 ms."""
MAX_PAIRS = 1500
"""Limit on pairs of schema and value that are counted, about 8 ms."""
MAX_LOOKS = 20_000
"""Limit on members and items that are visited to find those pairs, about 8 ms."""
MAX_VALUES = 30_000
"""Limit on the values in the arguments of a call."""
MAX_PARTS = 1500
"""Limit on the parts of a schema that is compiled. A pattern counts as twenty."""
_UNCOUNTED = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$anchor", "$id", "id")
"""Keywords that change what a reference means."""


class TooMuchWork(Exception):
    """Raised if a check would take too much time."""


_LISTED = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else", "propertyNames")
_COSTLY = frozenset(
    (*_LISTED, *_SINGLE, "$ref", "dependentSchemas", "dependencies", "patternProperties")
) | {"pattern", "enum", "$dynamicRef", "$recursiveRef"}
"""Keywords that visit a value more than once, or take longer than a visit."""


@dataclass(frozen=True, slots=True)
class SchemaSize:
    """Size of a schema. ``costly``: the work of a check may exceed the number of values.
    ``is_countable``: ``Effort`` finds what every reference leads to."""

    num_parts: int
    costly: bool
    is_countable: bool

    @property
    def is_compilable(self) -> bool:
        return self.num_parts <= MAX_PARTS


def measure_schema(schema: Any) -> SchemaSize:
    """Measure a schema, stopping once it is too large to compile."""
    num, is_costly, is_countable, stack = 0, False, True, [schema]
    while stack and num <= MAX_PARTS:
        part = stack.pop()
        if isinstance(part, dict):
            num += 20 if "pattern" in part else 1
            patterns = part.get("patternProperties")
            num += 20 * len(patterns) if isinstance(patterns, dict) else 0
            is_costly = is_costly or not _COSTLY.isdisjoint(part)
            is_countable = is_countable and not _names_references(part)
            stack.extend(part.values())
        elif isinstance(part, list):
            num += len(part)
            stack.extend(part)
    return SchemaSize(num, is_costly, is_countable)


def _names_references(schema: Mapping[str, Any]) -> bool:
    """Return True if the schema's reference, or one to it, does not say a place in the root."""
    reference = schema.get("$ref", "#")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        return True
    return any(isinstance(schema.get(name), str) for name in _UNCOUNTED)


def num_values(value: Any) -> int:
    """Return the number of values inside ``value``, counted up to MAX_VALUES."""
    num, stack = 0, [value]
    while stack and num <= MAX_VALUES:
        part = stack.pop()
        num += 1
        if isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return num


class Effort:
    """Counter of the visits of one check."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._counts: dict[tuple[int, int], int] = {}
        self._looks = 0

    def measure(self, value: Any) -> int:
        """Return the number of visits. Raises TooMuchWork if there are too many to count."""
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
        self._counts[pair] = 0  # open: whoever meets it again below does so without an end
        if "patternProperties" in schema and isinstance(value, dict):
            self._look(len(value))
        work = _weight(schema, value)
        in_place = sum(self._visit(part, value) for part in self._in_place(schema))
        # The validator asks every branch again for each member that may be unevaluated.
        if "unevaluatedProperties" in schema and isinstance(value, dict):
            in_place *= 1 + len(value)
        work += in_place
        for part, part_value in _inside(schema, value):
            self._look(1)
            work += self._visit(part, part_value)
        self._counts[pair] = work
        return work

    def _look(self, num: int) -> None:
        self._looks += num
        if self._looks > MAX_LOOKS:
            raise TooMuchWork("too many values for so many schemas")

    def _in_place(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for name in _LISTED:
            yield from schema[name] if isinstance(schema.get(name), list) else ()
        for name in _SINGLE:
            yield schema.get(name)
        for name in ("dependentSchemas", "dependencies"):
            yield from schema[name].values() if isinstance(schema.get(name), dict) else ()
        if "$ref" in schema:
            yield resolve(schema["$ref"], self._root)


def _weight(schema: Mapping[str, Any], value: Any) -> int:
    """Return the work of one visit: keywords, values to compare, characters to match."""
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
        schemas = [schema.get(name) for name in ("items", "contains", "unevaluatedItems")]
        prefix_items = schema.get("prefixItems")
        prefix_items = prefix_items if isinstance(prefix_items, list) else schema.get("items")
        prefix_items = prefix_items if isinstance(prefix_items, list) else []
        for part in schemas:
            if isinstance(part, dict):
                yield from ((part, part_value) for part_value in value)
        yield from zip(prefix_items, value, strict=False)


def _members(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    members = schema.get("properties")
    members = members if isinstance(members, dict) else {}
    wildcards = [
        part
        for name in ("additionalProperties", "unevaluatedProperties")
        if isinstance(part := schema.get(name), dict)
    ]
    patterns = schema.get("patternProperties")
    wildcards += patterns.values() if isinstance(patterns, dict) else ()
    # The shorter side is walked: a schema of 1,000 members costs nothing on an empty object.
    if len(members) < len(value):
        yield from ((members[name], value[name]) for name in members if name in value)
    else:
        yield from ((members[name], value[name]) for name in value if name in members)
    for part in wildcards:
        yield from ((part, part_value) for part_value in value.values())
