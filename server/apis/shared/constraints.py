"""response_format, structured_outputs and the older guided_* fields to one Constraint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from jsonschema_rs import Draft4Validator, Draft7Validator, Draft202012Validator

from engine.types import Constraint
from server.apis.chat.request import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuralTagFormat,
    TextFormat,
)
from server.apis.shared.sampling_fields import EngineFields, SamplingFields, StructuredOutputs
from server.apis.shared.schema_bounds import MAX_BYTES, check_bounds
from server.apis.shared.strict_json import BadJSON, loads
from server.apis.shared.strict_schema import check_strict
from server.errors import InvalidRequest
from server.parsing.schemas import normalise

META = Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})
"""JSON Schema's own rules; patterns are the grammar compiler's to read."""
OLDER_METAS = (
    Draft7Validator({"$ref": "http://json-schema.org/draft-07/schema#"}),
    Draft4Validator({"$ref": "http://json-schema.org/draft-04/schema#"}),
)
MAX_CHARS = MAX_BYTES
"""Of a pattern, a grammar, or all choices together; the engine's compiler is given no more."""
Named = tuple[str, Constraint]
"""The field a constraint came from, and the constraint."""
NO_CONSTRAINT = ("tools", None)
"""Where nothing is asked of the content, a grammar can only come from the tools."""


def constraint(
    request: SamplingFields, response_format: ResponseFormat | None = None
) -> Named | tuple[str, None]:
    """At most one of all the ways to say what the content must match."""
    return only_one([*_response_format(response_format), *structured(request), *_guided(request)])


def only_one(found: Sequence[Named]) -> Named | tuple[str, None]:
    """Raises InvalidRequest for more."""
    if len(found) > 1:
        names = " and ".join(f"'{name}'" for name, _ in found)
        raise InvalidRequest(f"{names} exclude each other; give one.", param=found[1][0])
    for name, wanted in found:
        _check_size(name, wanted)
    return found[0] if found else NO_CONSTRAINT


def _check_size(param: str, wanted: Constraint) -> None:
    size = len(wanted.value) + sum(map(len, wanted.choices))
    if size > MAX_CHARS:
        raise InvalidRequest(
            f"'{param}' may have at most {MAX_CHARS} characters; given {size}. Shorten it.",
            param=param,
        )


def json_schema(schema: dict[str, Any] | str, param: str, strict: bool = False) -> Constraint:
    """``schema`` as an object or as JSON text; with ``strict`` all of it must be enforceable."""
    if isinstance(schema, str):
        try:
            schema = loads(schema.encode())
        except BadJSON as error:
            raise InvalidRequest(f"'{param}' must be a JSON schema: {error}", param=param) from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{param}' must be a JSON schema object.", param=param)
    check_schema(schema, param)
    if strict:
        check_strict(schema, param)
    return Constraint("json_schema", orjson.dumps(schema).decode())


def check_schema(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest where ``schema`` breaks JSON Schema's own rules."""
    check_bounds(schema, param)
    error = next(iter(META.iter_errors(schema)), None)
    if error is not None:
        where = ".".join(["$", *map(str, error.instance_path)])[:200]
        raise InvalidRequest(
            f"'{param}' is no valid JSON schema: {error.message[:200]} (at {where}).",
            param=param,
        )


def check_readable(schema: dict[str, Any], param: str) -> None:
    """Raises InvalidRequest for a tool's schema that no draft of JSON Schema can mean.

    Words of other languages (``float``, ``nullable``) pass: they are read as they are meant.
    """
    if not META.is_valid(schema):
        read = normalise(schema)
        if not any(meta.is_valid(read) for meta in OLDER_METAS):
            check_schema(read, param)


def _response_format(wanted: ResponseFormat | None) -> Iterator[Named]:
    match wanted:
        case None | TextFormat():
            return
        case JsonObjectFormat():
            yield "response_format", Constraint("json_object")
        case StructuralTagFormat():
            tag = orjson.dumps(wanted.model_dump()).decode()
            yield "response_format", Constraint("structural_tag", tag)
        case JsonSchemaFormat():
            schema = wanted.json_schema.schema_ or {"type": "object"}
            strict = wanted.json_schema.strict is True
            yield "response_format", json_schema(schema, "response_format", strict)


def structured(request: EngineFields) -> Iterator[Named]:
    """``structured_outputs``; raises InvalidRequest for none or several of its kinds."""
    wanted = request.structured_outputs
    if wanted is None:
        return
    found = list(_kinds(wanted))
    if len(found) != 1:
        raise InvalidRequest(
            "'structured_outputs' needs exactly one of json, regex, choice, grammar, json_object "
            f"and structural_tag; given {len(found)}.",
            param="structured_outputs",
        )
    yield "structured_outputs", found[0]


def _kinds(wanted: StructuredOutputs) -> Iterator[Constraint]:
    if wanted.json_ is not None:
        yield json_schema(wanted.json_, "structured_outputs.json")
    if wanted.regex is not None:
        yield Constraint("regex", wanted.regex)
    if wanted.choice is not None:
        yield Constraint("choice", choices=tuple(wanted.choice))
    if wanted.grammar is not None:
        yield Constraint("grammar", wanted.grammar)
    if wanted.json_object:
        yield Constraint("json_object")
    if wanted.structural_tag is not None:
        yield Constraint("structural_tag", wanted.structural_tag)


def _guided(request: SamplingFields) -> Iterator[Named]:
    if request.guided_json is not None:
        yield "guided_json", json_schema(request.guided_json, "guided_json")
    if request.guided_regex is not None:
        yield "guided_regex", Constraint("regex", request.guided_regex)
    if request.guided_choice is not None:
        yield "guided_choice", Constraint("choice", choices=tuple(request.guided_choice))
    if request.guided_grammar is not None:
        yield "guided_grammar", Constraint("grammar", request.guided_grammar)
