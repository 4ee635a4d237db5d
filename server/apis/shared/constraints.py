"""The request's Constraint from response_format, structured_outputs or guided_*, and schema
limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from jsonschema_rs import Draft4Validator, Draft7Validator, Draft202012Validator

from eaglegate.engine.types import Constraint
from eaglegate.server.apis.shared.all_of import merge_all_of
from eaglegate.server.apis.shared.fields import (
    EngineFields,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingFields,
    StructuralTagFormat,
    StructuredOutputs,
    TextFormat,
)
from eaglegate.server.apis.shared.request import BadJSON, loads
from eaglegate.server.apis.shared.text_grammars import to_ebnf
from eaglegate.server.errors import InvalidRequest
from eaglegate.text.parsing.schemas import modernise, normalise

MAX_BYTES = 256 << 10
"""Maximum size of a schema as JSON, which is the limit of the engine's grammar compiler."""
MAX_PROPERTIES = 5000
"""Maximum number of properties in a whole schema, as in OpenAI's API."""
MAX_BRANCHES = 1000
"""Maximum number of branches of one anyOf, oneOf, allOf or prefixItems."""
MAX_DEPTH = 32
BRANCHES = ("anyOf", "oneOf", "allOf", "prefixItems")
SHOWN_PATH = 80
META = Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})
"""JSON Schema's meta-schema. Patterns are checked later by the grammar compiler."""
OLDER_METAS = (
    Draft7Validator({"$ref": "http://json-schema.org/draft-07/schema#"}),
    Draft4Validator({"$ref": "http://json-schema.org/draft-04/schema#"}),
)
MAX_CHARS = MAX_BYTES
"""Maximum length of a pattern, a grammar, or all choices together, which is the compiler's
limit.
"""
NamedConstraint = tuple[str, Constraint]
"""A constraint and the field that it came from."""
NO_CONSTRAINT = ("tools", None)
"""Result for a request without a content constraint. A grammar can then only come from its
tools.
"""


def content_constraint(
    request: SamplingFields, response_format: ResponseFormat | None = None
) -> NamedConstraint | tuple[str, None]:
    """Return the request's constraint, from whichever field gives one. Raises InvalidRequest."""
    return require_single(
        [
            *_read_response_format(response_format),
            *read_structured_outputs(request),
            *_read_guided_fields(request),
        ]
    )


def require_single(candidates: Sequence[NamedConstraint]) -> NamedConstraint | tuple[str, None]:
    """Return the only constraint, if any. Raises InvalidRequest for several."""
    if len(candidates) > 1:
        names = " and ".join(f"'{name}'" for name, _ in candidates)
        raise InvalidRequest(f"{names} are mutually exclusive; give one.", param=candidates[1][0])
    for name, constraint in candidates:
        _check_size(name, constraint)
    return candidates[0] if candidates else NO_CONSTRAINT


def _check_size(param: str, constraint: Constraint) -> None:
    size = len(constraint.value) + sum(map(len, constraint.choices))
    if size > MAX_CHARS:
        raise InvalidRequest(
            f"'{param}' may have at most {MAX_CHARS} characters; given {size}. Shorten it.",
            param=param,
        )


def schema_constraint(schema: dict[str, Any] | str, param: str, strict: bool = False) -> Constraint:
    """Make a constraint of a schema, given as an object or as JSON text.

    Raises InvalidRequest. With ``strict``, every keyword must be enforceable.
    """
    if isinstance(schema, str):
        try:
            schema = loads(schema.encode())
        except BadJSON as error:
            raise InvalidRequest(f"'{param}' must be a JSON schema: {error}", param=param) from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{param}' must be a JSON schema object.", param=param)
    latest: dict[str, Any] = modernise(schema)
    check_schema(latest, param)
    flat_schema = merge_all_of(latest)
    if strict:
        check_strict(flat_schema, param)
    return Constraint("json_schema", orjson.dumps(flat_schema).decode())


def check_strict(schema: Any, param: str) -> None:
    """Raise InvalidRequest, naming the first keyword that would not be enforced.

    ``strict`` promises that every answer matches. OpenAI also refuses keywords by name.
    """
    # Imported with the first strict schema in a request.
    from eaglegate.text.grammars.enforcement import find_unenforced

    for location, keyword in find_unenforced(schema):
        raise InvalidRequest(
            f"Invalid schema in '{param}': '{keyword}' at {location} cannot be enforced, and "
            "'strict' is true. Remove it, rewrite it, or set 'strict' to false.",
            param=param,
            code="invalid_schema",
        )


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raise InvalidRequest if ``schema`` violates JSON Schema's rules."""
    check_bounds(schema, param)
    error = next(iter(META.iter_errors(schema)), None)
    if error is not None:
        location = ".".join(["$", *map(str, error.instance_path)])[:200]
        raise InvalidRequest(
            f"'{param}' is not a valid JSON schema: {error.message[:200]} (at {location}).",
            param=param,
        )


def check_readable(schema: dict[str, Any], param: str) -> None:
    """Raise InvalidRequest if a tool's schema is not valid in any draft of JSON Schema.

    Keywords of other schema languages (``float``, ``nullable``) are accepted and translated.
    """
    if not META.is_valid(schema):
        read = normalise(schema)
        if not any(meta.is_valid(read) for meta in OLDER_METAS):
            check_schema(read, param)


def _read_response_format(response_format: ResponseFormat | None) -> Iterator[NamedConstraint]:
    match response_format:
        case None | TextFormat():
            return
        case JsonObjectFormat():
            yield "response_format", Constraint("json_object")
        case StructuralTagFormat():
            tag = orjson.dumps(response_format.model_dump()).decode()
            yield "response_format", Constraint("structural_tag", tag)
        case JsonSchemaFormat():
            schema = response_format.json_schema.schema_ or {"type": "object"}
            strict = response_format.json_schema.strict is True
            yield "response_format", schema_constraint(schema, "response_format", strict)


def read_structured_outputs(request: EngineFields) -> Iterator[NamedConstraint]:
    """Read ``structured_outputs``. Raises InvalidRequest unless it has exactly one kind."""
    outputs = request.structured_outputs
    if outputs is None:
        return
    constraints = list(_read_kinds(outputs))
    if len(constraints) != 1:
        raise InvalidRequest(
            "'structured_outputs' needs exactly one of json, regex, choice, grammar, json_object "
            f"and structural_tag; given {len(constraints)}.",
            param="structured_outputs",
        )
    yield "structured_outputs", constraints[0]


def _read_kinds(outputs: StructuredOutputs) -> Iterator[Constraint]:
    if outputs.json_ is not None:
        yield schema_constraint(outputs.json_, "structured_outputs.json")
    if outputs.regex is not None:
        yield Constraint("regex", outputs.regex)
    if outputs.choice is not None:
        yield Constraint("choice", choices=tuple(outputs.choice))
    if outputs.grammar is not None:
        yield Constraint("grammar", to_ebnf(outputs.grammar, "structured_outputs.grammar"))
    if outputs.json_object:
        yield Constraint("json_object")
    if outputs.structural_tag is not None:
        yield Constraint("structural_tag", outputs.structural_tag)


def _read_guided_fields(request: SamplingFields) -> Iterator[NamedConstraint]:
    if request.guided_json is not None:
        yield "guided_json", schema_constraint(request.guided_json, "guided_json")
    if request.guided_regex is not None:
        yield "guided_regex", Constraint("regex", request.guided_regex)
    if request.guided_choice is not None:
        yield "guided_choice", Constraint("choice", choices=tuple(request.guided_choice))
    if request.guided_grammar is not None:
        grammar = to_ebnf(request.guided_grammar, "guided_grammar")
        yield "guided_grammar", Constraint("grammar", grammar)


def check_bounds(schema: Any, param: str) -> None:
    """Raise InvalidRequest, naming the place and the limit, if ``schema`` exceeds a limit."""
    num_bytes = len(orjson.dumps(schema))
    if num_bytes > MAX_BYTES:
        raise _too_large(param, "$", f"{num_bytes} bytes of JSON", MAX_BYTES)
    num_properties = 0
    for location, part, depth in _walk(schema):
        properties = part.get("properties")
        num_properties += len(properties) if isinstance(properties, dict) else 0
        if num_properties > MAX_PROPERTIES:
            raise _too_large(param, location, f"{num_properties} properties in all", MAX_PROPERTIES)
        for name in BRANCHES:
            if isinstance(part.get(name), list) and len(part[name]) > MAX_BRANCHES:
                problem = f"{len(part[name])} branches of '{name}'"
                raise _too_large(param, location, problem, MAX_BRANCHES)
        if depth > MAX_DEPTH:
            raise _too_large(param, location, f"{depth} levels", MAX_DEPTH)


def _walk(schema: Any) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yield every object in the schema with its path and nesting depth."""
    stack: list[tuple[str, Any, int]] = [("$", schema, 0)]
    while stack:
        path, part, depth = stack.pop()
        if isinstance(part, dict):
            yield path, part, depth
            deeper = depth + ("type" in part or "properties" in part or "items" in part)
            stack += [(_extend_path(path, name), inner, deeper) for name, inner in part.items()]
        elif isinstance(part, list):
            stack += [(path, inner, depth) for inner in part if isinstance(inner, dict | list)]


def _extend_path(path: str, name: str) -> str:
    """Return a path for messages, of limited length."""
    return path if len(path) > SHOWN_PATH else f"{path}.{name[:SHOWN_PATH]}"


def _too_large(param: str, location: str, size: str, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The schema in '{param}' is too large: it has {size} at {location}; the limit is {limit}. "
        "Split the schema or remove parts of it.",
        param=param,
        code="invalid_schema",
    )
