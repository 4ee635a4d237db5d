"""JSON schema keywords that xgrammar enforces, and those that it ignores.

``strict: true`` is refused for ignored keywords, and an audit blames no answer for breaking one.
tests/server/apis/shared/test_strict_schema.py checks each rule against xgrammar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from jsonschema_rs import Draft202012Validator, ReferencingError, RegexOptions, ValidationError

Schema = Mapping[str, Any]
Unenforced = tuple[str, str]
"""Path and keyword of an unenforced rule."""

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
COMBINATORS = ("$ref", "anyOf", "oneOf", "allOf")
"""xgrammar ignores keywords next to one of these."""
ASSERTIONS = NUMBERS | STRINGS | ARRAYS | OBJECTS | {"type", *COMBINATORS}
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")


EVIDENCE = frozenset((
    "type", "required", "enum", "const", "additionalProperties", "minItems", "maxItems",
    "minLength", "maxLength", "minimum", "maximum", "pattern",
    "properties", "items", "prefixItems", "$ref",
))  # fmt: skip
"""Keywords whose breach proves a fault of the engine, and those that lead to them."""


def find_unenforced(schema: Any) -> Iterator[Unenforced]:
    """Yield the keywords of a schema and its subschemas that are not enforced."""
    yield from _find_unenforced(schema, schema, "$", Exclusion())


def is_enforced(schema: Any, path: Iterable[str | int]) -> bool:
    """Return True if xgrammar enforces a keyword and every schema on the way to it.

    ``path`` is the keyword's evaluation path as validators give it, with the references on the way.
    """
    part: Any = schema
    exclusion, steps = Exclusion(), iter(path)
    for keyword in steps:
        if keyword not in EVIDENCE or not isinstance(part, dict):
            return False
        if any(_check_keywords(part, schema, exclusion)):
            return False
        try:
            part = _resolve(part, schema) if keyword == "$ref" else part[keyword]
            part = part[next(steps, "")] if keyword in ("properties", "prefixItems") else part
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _find_unenforced(
    schema: Any, root: Any, keyword_path: str, exclusion: Exclusion
) -> Iterator[Unenforced]:
    if not isinstance(schema, dict):
        return
    for keyword in _check_keywords(schema, root, exclusion):
        yield keyword_path, keyword
    for path, part in _parts(schema):
        yield from _find_unenforced(part, root, f"{keyword_path}.{path}", exclusion)


def _parts(schema: Schema) -> Iterator[tuple[str, Any]]:
    for name in MAPS:
        for key, part in _mapping(schema.get(name)).items():
            yield f"{name}.{key}", part
    for name in LISTS:
        for index, part in enumerate(_list(schema.get(name))):
            yield f"{name}[{index}]", part
    for name in SINGLE:
        yield name, schema.get(name)


def _check_keywords(schema: Schema, root: Any, exclusion: Exclusion) -> Iterator[str]:
    """Yield the unenforced keywords of a schema, without those of its subschemas."""
    yield from (keyword for keyword in NEVER if keyword in schema)
    if schema.get("uniqueItems"):
        yield "uniqueItems"
    if "const" in schema or "enum" in schema:
        yield from _check_values(schema)
        return
    combinator = next((name for name in COMBINATORS if name in schema), None)
    if combinator is not None:
        yield from _check_combination(combinator, schema, root, exclusion)
        return
    yield from _check_untyped(schema)
    yield from _check_numbers(schema)
    yield from _check_strings(schema)
    yield from _check_objects(schema)


def _check_values(schema: Schema) -> Iterator[str]:
    """Yield the keyword if a listed value violates the rest of the schema, which xgrammar
    ignores.
    """
    keyword = "const" if "const" in schema else "enum"
    values = [schema["const"]] if keyword == "const" else _list(schema["enum"])
    assertions = {
        name: part for name, part in schema.items() if name in ASSERTIONS and name != "$ref"
    }
    if not _all_match(assertions, values):
        yield keyword


def _all_match(schema: Schema, values: list[Any]) -> bool:
    """Return True if all values match. False if that cannot be checked in linear time, as for
    patterns that need backtracking.
    """
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


def _check_combination(
    combinator: str, schema: Schema, root: Any, exclusion: Exclusion
) -> Iterator[str]:
    yield from sorted(name for name in ASSERTIONS & schema.keys() if name != combinator)
    parts = _list(schema.get(combinator))
    if combinator == "allOf" and len(parts) > 1:
        yield "allOf"
    if combinator == "oneOf" and not exclusion.holds([_resolve(part, root) for part in parts]):
        yield "oneOf"


def _resolve(schema: Any, root: Any) -> Schema:
    reference = _mapping(schema).get("$ref")
    target = root
    for step in str(reference)[2:].split("/") if reference else ():
        target = _mapping(target).get(step)
    return _mapping(target if reference else schema)


def _check_untyped(schema: Schema) -> Iterator[str]:
    """Yield the unenforced keywords of a schema without a type.

    Only keywords that imply an object or an array are enforced.
    """
    if _types(schema):
        return
    yield from sorted((NUMBERS | STRINGS) & schema.keys())
    if "items" not in schema and "prefixItems" not in schema:
        yield from sorted({"minItems", "maxItems"} & schema.keys())
    if "properties" not in schema:
        yield from sorted({"required", "minProperties", "maxProperties"} & schema.keys())


def _check_numbers(schema: Schema) -> Iterator[str]:
    step = schema.get("multipleOf")
    if step is None or not _types(schema) & {"integer", "number"}:
        return
    is_bounded = len(NUMBERS & schema.keys()) > 1
    if "number" in _types(schema) or is_bounded or not float(step).is_integer():
        yield "multipleOf"


def _check_strings(schema: Schema) -> Iterator[str]:
    if "string" not in _types(schema):
        return
    if "format" in schema and schema["format"] not in FORMATS:
        yield "format"
    if "pattern" in schema and "format" in schema:
        yield "format"
    if "pattern" in schema or "format" in schema:
        yield from sorted({"minLength", "maxLength"} & schema.keys())


def _check_objects(schema: Schema) -> Iterator[str]:
    properties = _mapping(schema.get("properties")).keys()
    if properties and not set(_list(schema.get("required"))) <= properties:
        yield "required"
    keywords = {"properties", "patternProperties", "unevaluatedProperties"} & schema.keys()
    if "propertyNames" in schema and keywords:
        yield "propertyNames"
    if len(_mapping(schema.get("patternProperties"))) > 1 or (
        "patternProperties" in schema and ("properties" in schema or "minProperties" in schema)
    ):
        yield "patternProperties"


def _types(schema: Schema) -> frozenset[str]:
    value = schema.get("type")
    return frozenset([value] if isinstance(value, str) else _list(value))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


PAIRS = 512
"""Maximum number of branches that are compared in pairs."""
MAX_WORK = 500_000
"""Maximum number of values visited for one schema."""
TYPE = ""
"""Name of the discriminator that is a branch's own type."""

Discriminators = dict[str, frozenset[str]]
"""Allowed values of a branch by discriminator."""


class Exclusion:
    """Checks that the branches of a ``oneOf`` exclude each other.

    Branches differ by type, or by a discriminator: a required property with listed values. If no
    discriminator separates all branches at once, up to ``PAIRS`` of them are compared in pairs. A
    check that exceeds ``MAX_WORK`` counts as not exclusive. One object serves all ``oneOf`` of a
    schema.
    """

    def __init__(self) -> None:
        self._known: dict[int, Discriminators] = {}
        self._work = 0

    def holds(self, branches: Sequence[Schema]) -> bool:
        """Return True if a cheap check shows that no value matches two branches."""
        if len({id(branch) for branch in branches}) < len(branches):
            return False
        try:
            discriminators = [self._read(branch) for branch in branches]
            return self._separates_all(discriminators) or self._separates_pairs(discriminators)
        except _WorkExceeded:
            return False

    def _read(self, branch: Schema) -> Discriminators:
        if id(branch) not in self._known:
            self._known[id(branch)] = discriminators = _read_discriminators(branch)
            self._spend(sum(map(len, discriminators.values())))
        return self._known[id(branch)]

    def _separates_all(self, branches: list[Discriminators]) -> bool:
        """Return True if one discriminator has no value in common between any two branches."""
        for name in set.intersection(*map(set, branches)) if branches else ():
            num_values = sum(len(branch[name]) for branch in branches)
            self._spend(num_values)
            if len(frozenset[str]().union(*(branch[name] for branch in branches))) == num_values:
                return True
        return False

    def _separates_pairs(self, branches: list[Discriminators]) -> bool:
        return len(branches) <= PAIRS and all(
            self._are_disjoint(first, second) for first, second in combinations(branches, 2)
        )

    def _are_disjoint(self, first: Discriminators, second: Discriminators) -> bool:
        for name in first.keys() & second.keys():
            self._spend(min(len(first[name]), len(second[name])))
            if first[name].isdisjoint(second[name]):
                return True
        return False

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise _WorkExceeded


class _WorkExceeded(Exception):
    """The work limit for one schema was reached."""


def _read_discriminators(schema: Schema) -> Discriminators:
    discriminators = {}
    properties, required_names = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required_names, list):
        for name in {name for name in required_names if isinstance(name, str)} & properties.keys():
            if values := _allowed_values(properties[name]):
                discriminators[f".{name}"] = values
    if types := _type_names(schema.get("type")):
        discriminators[TYPE] = types
    return discriminators


def _allowed_values(part: Any) -> frozenset[str]:
    """Return the allowed values if they are listed, else an empty set."""
    if not isinstance(part, dict):
        return frozenset()
    values = [part["const"]] if "const" in part else part.get("enum")
    return frozenset(map(repr, values)) if isinstance(values, list) else frozenset()


def _type_names(value: Any) -> frozenset[str]:
    """Return the type names. Every integer is a number."""
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    types = frozenset(name for name in names if isinstance(name, str))
    return types | {"number"} if "integer" in types else types
