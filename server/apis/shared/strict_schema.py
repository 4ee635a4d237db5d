"""What of a JSON schema the engine's grammar (xgrammar) would leave out, for ``strict: true``.

A strict schema promises that every answer matches it, so what cannot be enforced is refused by
name, as OpenAI refuses what it has no support for. Each rule here is held against xgrammar itself
by tests/server/test_strict_schema.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions, ValidationError

from server.apis.shared.exclusive import Exclusion
from server.errors import InvalidRequest

Schema = Mapping[str, Any]
Found = tuple[str, str]
"""Where, and which keyword."""

NEVER = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
    "contains", "minContains", "maxContains",
)  # fmt: skip
FORMATS = frozenset((
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
))  # fmt: skip
NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
STRINGS = frozenset(("minLength", "maxLength", "pattern", "format"))
ARRAYS = frozenset((
    "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems",
))  # fmt: skip
OBJECTS = frozenset((
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
    "minProperties", "maxProperties", "unevaluatedProperties",
))  # fmt: skip
SPEAKS_FOR_ITSELF = ("$ref", "anyOf", "oneOf", "allOf")
"""Beside one of these, other keywords are not looked at."""
ASSERTIONS = NUMBERS | STRINGS | ARRAYS | OBJECTS | {"type", *SPEAKS_FOR_ITSELF}
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")


def check_strict(schema: Any, param: str) -> None:
    """Raises InvalidRequest, naming the first keyword that would not be enforced."""
    for where, keyword in _unenforced(schema, schema, "$", Exclusion()):
        raise InvalidRequest(
            f"Invalid schema in '{param}': '{keyword}' at {where} cannot be enforced here, and "
            "'strict' is true. Leave it out, write it otherwise, or give up 'strict'.",
            param=param,
            code="invalid_schema",
        )


def _unenforced(schema: Any, root: Any, where: str, exclusion: Exclusion) -> Iterator[Found]:
    if not isinstance(schema, dict):
        return
    for keyword in _of_one(schema, root, exclusion):
        yield where, keyword
    for path, part in _parts(schema):
        yield from _unenforced(part, root, f"{where}.{path}", exclusion)


def _parts(schema: Schema) -> Iterator[tuple[str, Any]]:
    for name in MAPS:
        for key, part in _mapping(schema.get(name)).items():
            yield f"{name}.{key}", part
    for name in LISTS:
        for at, part in enumerate(_list(schema.get(name))):
            yield f"{name}[{at}]", part
    for name in SINGLE:
        yield name, schema.get(name)


def _of_one(schema: Schema, root: Any, exclusion: Exclusion) -> Iterator[str]:
    """The keywords of a schema itself, its parts apart."""
    yield from (keyword for keyword in NEVER if keyword in schema)
    if schema.get("uniqueItems"):
        yield "uniqueItems"
    if "const" in schema or "enum" in schema:
        yield from _beside_values(schema)
        return
    speaks = next((name for name in SPEAKS_FOR_ITSELF if name in schema), None)
    if speaks is not None:
        yield from _beside(speaks, schema, root, exclusion)
        return
    yield from _untyped(schema)
    yield from _numbers(schema)
    yield from _strings(schema)
    yield from _objects(schema)


def _beside_values(schema: Schema) -> Iterator[str]:
    """Listed values are let through whatever else is said, so that each must fit it by itself."""
    keyword = "const" if "const" in schema else "enum"
    values = [schema["const"]] if keyword == "const" else _list(schema["enum"])
    own = {name: part for name, part in schema.items() if name in ASSERTIONS and name != "$ref"}
    if not _all_fit(own, values):
        yield keyword


def _all_fit(schema: Schema, values: list[Any]) -> bool:
    """Not where that cannot be found out in linear time: patterns that need backtracking."""
    try:
        validator = Draft202012Validator(
            dict(schema),
            retriever=_retrieve,
            pattern_options=RegexOptions(),
            validate_formats=False,
        )
        return all(map(validator.is_valid, values))
    except (ValidationError, ReferencingError, ValueError):
        return False


def _retrieve(uri: str) -> Any:
    raise ValueError(f"nothing is fetched: {uri[:80]}")


def _beside(speaks: str, schema: Schema, root: Any, exclusion: Exclusion) -> Iterator[str]:
    yield from sorted(name for name in ASSERTIONS & schema.keys() if name != speaks)
    parts = _list(schema.get(speaks))
    if speaks == "allOf" and len(parts) > 1:
        yield "allOf"
    if speaks == "oneOf" and not exclusion.holds([_resolved(part, root) for part in parts]):
        yield "oneOf"


def _resolved(schema: Any, root: Any) -> Schema:
    reference = _mapping(schema).get("$ref")
    target = root
    for step in str(reference)[2:].split("/") if reference else ():
        target = _mapping(target).get(step)
    return _mapping(target if reference else schema)


def _untyped(schema: Schema) -> Iterator[str]:
    """Without a type only what says object or array by itself is enforced."""
    if _types(schema):
        return
    yield from sorted((NUMBERS | STRINGS) & schema.keys())
    if "items" not in schema and "prefixItems" not in schema:
        yield from sorted({"minItems", "maxItems"} & schema.keys())
    if "properties" not in schema:
        yield from sorted({"required", "minProperties", "maxProperties"} & schema.keys())


def _numbers(schema: Schema) -> Iterator[str]:
    step = schema.get("multipleOf")
    if step is None or not _types(schema) & {"integer", "number"}:
        return
    bounded = len(NUMBERS & schema.keys()) > 1
    if "number" in _types(schema) or bounded or not float(step).is_integer():
        yield "multipleOf"


def _strings(schema: Schema) -> Iterator[str]:
    if "string" not in _types(schema):
        return
    if "format" in schema and schema["format"] not in FORMATS:
        yield "format"
    if "pattern" in schema and "format" in schema:
        yield "format"
    if "pattern" in schema or "format" in schema:
        yield from sorted({"minLength", "maxLength"} & schema.keys())


def _objects(schema: Schema) -> Iterator[str]:
    named = _mapping(schema.get("properties")).keys()
    if named and not set(_list(schema.get("required"))) <= named:
        yield "required"
    others = {"properties", "patternProperties", "unevaluatedProperties"} & schema.keys()
    if "propertyNames" in schema and others:
        yield "propertyNames"
    if len(_mapping(schema.get("patternProperties"))) > 1 or (
        "patternProperties" in schema and ("properties" in schema or "minProperties" in schema)
    ):
        yield "patternProperties"


def _types(schema: Schema) -> frozenset[str]:
    named = schema.get("type")
    return frozenset([named] if isinstance(named, str) else _list(named))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
