"""Schemas of older drafts, and ``allOf``: what a client asks for is enforced."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from eaglegate.server.apis.shared.all_of import merge_all_of
from eaglegate.server.apis.shared.constraints import schema_constraint
from eaglegate.text.events import Outcome
from eaglegate.text.parsing.message import matching
from eaglegate.text.parsing.tools import OfferedTools

xgrammar = pytest.importorskip("xgrammar")
is_accepted = pytest.importorskip("xgrammar.testing")._is_grammar_accept_string

DRAFT7, DRAFT4 = (
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
)
I, S = {"type": "integer"}, {"type": "string"}  # noqa: E741


def holder(name: str, schema: dict[str, Any], draft: str | None = None) -> dict[str, Any]:
    """The schema of an object with one property, in a draft."""
    whole = {"type": "object", "properties": {name: schema}, "required": [name]}
    return whole if draft is None else whole | {"$schema": draft}


OLDER: dict[str, tuple[dict[str, Any], str, str]] = {
    "tuple": (
        holder("p", {"type": "array", "items": [I, S], "additionalItems": False}, DRAFT7),
        '{"p": [1, "a"]}',
        '{"p": ["a", 1]}',
    ),
    "exclusive": (
        holder("n", I | {"minimum": 0, "exclusiveMinimum": True}, DRAFT4),
        '{"n": 1}',
        '{"n": 0}',
    ),
    "not exclusive": (
        holder("n", I | {"maximum": 9, "exclusiveMaximum": False}, DRAFT4),
        '{"n": 9}',
        '{"n": 10}',
    ),
    "id": (holder("n", I | {"$id": "#/properties/n"}, DRAFT7), '{"n": 1}', '{"n": "1"}'),
    "no $schema": (holder("p", {"type": "array", "items": [I]}), '{"p": [1]}', '{"p": ["a"]}'),
}


def accepts(schema: Any, text: str) -> bool:
    tag = {"type": "structural_tag", "format": matching(schema)}
    return is_accepted(xgrammar.Grammar.from_structural_tag(tag), text)


@pytest.mark.parametrize("name", OLDER)
def test_a_schema_of_an_older_draft_is_enforced(name):
    schema, good, bad = OLDER[name]
    constraint = schema_constraint(schema, "guided_json")
    written = orjson.loads(constraint.value)
    assert (accepts(written, good), accepts(written, bad)) == (True, False)


@pytest.mark.parametrize("name", OLDER)
def test_a_call_is_judged_by_a_schema_of_an_older_draft(name):
    schema, good, bad = OLDER[name]
    tools = OfferedTools([{"name": "f", "parameters": schema}])
    assert tools.judge("f", good) is Outcome.VALID
    assert tools.judge("f", bad) is Outcome.SCHEMA_MISMATCH


def test_names_of_properties_are_no_keywords():
    schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": I}, "exclusiveMinimum": True, "$id": S},
    }
    assert orjson.loads(schema_constraint(schema, "x").value) == schema


ALSO_B = {"properties": {"b": I}, "required": ["b"]}
MERGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "objects": ({"allOf": [holder("a", I), holder("b", S)]}, '{"a": 1, "b": "x"}', '{"b": "x"}'),
    "beside": (holder("a", I) | {"allOf": [ALSO_B]}, '{"a": 1, "b": 2}', '{"a": 1}'),
    "reference": (
        {"$defs": {"base": holder("a", I)}, "allOf": [{"$ref": "#/$defs/base"}, ALSO_B]},
        '{"a": 1, "b": 2}',
        '{"b": 2}',
    ),
    "bounds": ({"allOf": [I | {"minimum": 5}, I | {"maximum": 9}]}, "7", "3"),
    "same property": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "number", "minimum": 1}}},
                {"properties": {"a": I | {"maximum": 3}}, "required": ["a"]},
            ]
        },
        '{"a": 2}',
        '{"a": 2.5}',
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_all_of_is_enforced(name):
    schema, good, bad = MERGED[name]
    written = orjson.loads(schema_constraint(schema, "response_format").value)
    assert (accepts(written, good), accepts(written, bad)) == (True, False)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"allOf": [{"properties": {"a": I}, "additionalProperties": False}, ALSO_B]},
        {"allOf": [{"anyOf": [I, S]}, {"minimum": 3}]},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, I]}}, "allOf": [{"$ref": "#/$defs/a"}]},
        {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}},
    ],
    ids=["patterns", "types", "forbidden", "anyOf", "endless", "wide"],
)
def test_unmergeable_schemas_are_kept(schema):
    assert merge_all_of(schema) == schema
