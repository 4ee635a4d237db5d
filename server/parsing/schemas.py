"""JSON schemas of tools: what clients write in place of JSON Schema's types, and what it allows.

Clients write ``float``, ``dict`` or ``nullable: true`` where JSON Schema says ``number``,
``object`` or ``["string", "null"]``. A schema is read as it is meant, for the JSON that parameters
become and for the judgement of a call alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
"""Names that other languages have for JSON's types."""
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING = frozenset({"string"})
MAX_DEPTH = 16
_VALUES = ("const", "enum", "default", "examples", "example")
"""Keywords whose content is no schema."""


def normalise(schema: Any, depth: int = 0) -> Any:
    """``schema`` in JSON Schema's own words; an unknown type says nothing."""
    if isinstance(schema, list):
        return [normalise(part, depth + 1) for part in schema]
    if not isinstance(schema, dict) or depth > 64:
        return schema
    found = {
        name: part if name in _VALUES else normalise(part, depth + 1)
        for name, part in schema.items()
    }
    if isinstance(schema.get("type"), str | list):
        types = _types(schema["type"])
        if not types:
            del found["type"]
        elif types != schema["type"]:
            found["type"] = types
    if found.get("nullable") is True:
        _allow_null(found)
    return found


def _types(named: str | list[Any]) -> str | list[Any]:
    """``type`` in JSON Schema's words, in the shape it came in."""
    if isinstance(named, str):
        name = named.strip().lower()
        name = ALIASES.get(name, name)
        return name if name in TYPES else ""
    known = [_types(one) for one in named if isinstance(one, str)]
    return list(dict.fromkeys(one for one in known if one))


def _allow_null(schema: dict[str, Any]) -> None:
    """OpenAPI's ``nullable``."""
    types = schema.get("type")
    if isinstance(types, str):
        schema["type"] = [types, "null"]
    elif isinstance(types, list) and "null" not in types:
        schema["type"] = [*types, "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


def resolve(reference: Any, root: Any) -> Any:
    """What a reference inside ``root`` points to; None for any other."""
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


def properties(root: Any) -> dict[str, list[Any]]:
    """The schemas of each parameter: of the root, of its branches, of what it refers to."""
    found: dict[str, list[Any]] = {}
    for part in _alternatives(root, root, 0, set()):
        own = part.get("properties")
        for name, schema in own.items() if isinstance(own, dict) else ():
            found.setdefault(name, []).append(schema)
    return found


def additional(root: Any) -> Any:
    """The schema of parameters that no property names; None where it does not say."""
    for part in _alternatives(root, root, 0, set()):
        if isinstance(part.get("additionalProperties"), dict):
            return part["additionalProperties"]
    return None


def _alternatives(
    schema: Any, root: Any, depth: int, seen: set[int]
) -> Iterator[Mapping[str, Any]]:
    """Each schema once, however many ways lead to it."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH or id(schema) in seen:
        return
    seen.add(id(schema))
    yield schema
    for part in _branches(schema, "allOf", "anyOf", "oneOf"):
        yield from _alternatives(part, root, depth + 1, seen)
    if "$ref" in schema:
        yield from _alternatives(resolve(schema["$ref"], root), root, depth + 1, seen)


def _branches(schema: Mapping[str, Any], *keywords: str) -> list[Any]:
    return [part for name in keywords for part in (schema[name] if _is_list(schema, name) else ())]


def _is_list(schema: Mapping[str, Any], name: str) -> bool:
    return isinstance(schema.get(name), list)


def kinds(schema: Any, root: Any = None) -> frozenset[str]:
    """The JSON types a schema allows: any where it says nothing, a string where there is none."""
    if schema is None:
        return STRING
    return _find_kinds(schema, schema if root is None else root, 0, {}) or TYPES


def _find_kinds(
    schema: Any, root: Any, depth: int, known: dict[int, frozenset[str]]
) -> frozenset[str]:
    """Empty for a schema that says nothing of types; each schema is looked at once."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return frozenset()
    if id(schema) not in known:
        known[id(schema)] = frozenset()
        known[id(schema)] = _read_kinds(schema, root, depth + 1, known)
    return known[id(schema)]


def _read_kinds(
    schema: Mapping[str, Any], root: Any, depth: int, known: dict[int, frozenset[str]]
) -> frozenset[str]:
    if found := _find_types(schema):
        return found
    each = [_find_kinds(part, root, depth, known) for part in _branches(schema, "anyOf", "oneOf")]
    if each and all(each):
        return frozenset[str]().union(*each)
    target = resolve(schema["$ref"], root) if "$ref" in schema else None
    if found := _find_kinds(target, root, depth, known):
        return found
    for part in _branches(schema, "allOf"):
        if found := _find_kinds(part, root, depth, known):
            return found
    return _infer_types(schema)


def _find_types(schema: Mapping[str, Any]) -> frozenset[str]:
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    found = frozenset(name for name in names if isinstance(name, str))
    if found:
        return found
    if "const" in schema:
        return frozenset([_kind(schema["const"])])
    return frozenset(map(_kind, schema["enum"])) if _is_list(schema, "enum") else found


def _infer_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """By keywords that only one type has."""
    if "properties" in schema or "required" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else frozenset()


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    by_type = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return by_type.get(type(value), "object")
