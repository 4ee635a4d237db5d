"""The JSON that parameters written as text become, and what their schema allows.

Objects whose schemas name their members have no others, unless the schema says otherwise.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from eaglegate.text.events import Outcome
from eaglegate.text.parsing.arguments import as_json
from eaglegate.text.parsing.schemas import TYPES, kinds
from eaglegate.text.parsing.tools import OfferedTools, ToolSchema

ROOT = {
    "$defs": {"Size": {"enum": [1, 2]}, "Loop": {"$ref": "#/$defs/Loop"}},
    "properties": {},
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (None, {"string"}),
        ({}, TYPES),
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, {"object", "null"}),
        ({"enum": ["a", 1, 1.5]}, {"string", "integer", "number"}),
        ({"enum": [None, [], {}]}, {"null", "array", "object"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/Size"}, {"integer"}),
        ({"$ref": "#/$defs/Loop"}, TYPES),
        ({"$ref": "#/nowhere"}, TYPES),
    ],
)
def test_types_allowed_by_a_schema(schema, types):
    assert kinds(schema, ROOT) == types


@pytest.mark.parametrize(
    ("text", "allowed", "written"),
    [
        ("5", "integer", "5"),
        (" 5\n", "integer", "5"),
        ("007", "integer", "7"),
        ("5.5", "integer", '"5.5"'),
        ("five", "integer", '"five"'),
        ("1000000.0", "number", "1000000.0"),
        ("1e5", "number", "1e5"),
        ("nan", "number", '"nan"'),
        ("1_000", "number", '"1_000"'),
        ("True", "boolean", "true"),
        ("false", "boolean", "false"),
        ("yes", "boolean", '"yes"'),
        ("None", "null", "null"),
        ("null", "string", '"null"'),
        ('{"a":  1}', "object", '{"a":  1}'),
        ("{'a': True}", "object", '{"a": true}'),
        ("{a", "object", '"{a"'),
        ("[1, NaN]", "array", '"[1, NaN]"'),
    ],
)
def test_a_value_as_json(text, allowed, written):
    found = as_json(text, frozenset({allowed}))
    assert found == written
    json.loads(found)


def test_a_union_takes_what_fits_first():
    allowed = frozenset({"string", "integer", "null"})
    assert [as_json(text, allowed) for text in ("5", "x", "null")] == ["5", '"x"', "null"]


TOOLS = OfferedTools(
    [
        {"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}},
        {"name": "bare", "parameters": {"type": "object"}},
        {"name": "broken", "parameters": {"properties": {"a": {"type": "nonsense"}}}},
        {"name": "far", "parameters": {"$ref": "http://127.0.0.1:9/schema.json"}},
        {"name": ["no", "name"]},
        {"function": None},
    ]
)


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("f", '{"a": 1}', Outcome.VALID),
        ("f", "{}", Outcome.SCHEMA_MISMATCH),
        ("f", "[]", Outcome.MALFORMED),
        ("f", '{"a": NaN}', Outcome.MALFORMED),
        ("f", "[" * 20000, Outcome.MALFORMED),
        ("bare", "{}", Outcome.VALID),
        ("broken", '{"a": 1}', Outcome.VALID),
        ("far", "{}", Outcome.UNCHECKED),
        ("other", "{", Outcome.UNKNOWN_TOOL),
    ],
)
def test_the_outcome_of_a_call(name, arguments, outcome):
    assert TOOLS.judge(name, arguments) is outcome


def test_nothing_is_unknown_where_nothing_was_stated():
    assert OfferedTools(None).judge("any", "{}") is Outcome.VALID


CITY = {"type": "string"}
PLACE = {"type": "object", "properties": {"city": CITY}}
CLOSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PLACE, {"city": "P", "mood": 1}),
    ({"type": "object", "properties": {}}, {"mood": 1}),
    ({"type": "object", "properties": {"at": PLACE}}, {"at": {"city": "P", "mood": 1}}),
    ({"properties": {"all": {"type": "array", "items": PLACE}}}, {"all": [{"mood": 1}]}),
    ({"allOf": [PLACE, {"properties": {"n": {}}}]}, {"city": "P", "n": 1, "mood": 1}),
    ({"$ref": "#/$defs/P", "$defs": {"P": PLACE}}, {"mood": 1}),
    ({"properties": {"at": {"$ref": "#/$defs/P"}}, "$defs": {"P": PLACE}}, {"at": {"mood": 1}}),
    ({"anyOf": [PLACE, {"properties": {"n": {}}, "required": ["n"]}]}, {"city": "P", "mood": 1}),
]
OPEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "object"}, {"mood": 1}),
    ({}, {"mood": 1}),
    ({**PLACE, "additionalProperties": True}, {"mood": 1}),
    ({**PLACE, "additionalProperties": {"type": "integer"}}, {"mood": 1}),
    ({**PLACE, "patternProperties": {"^m": {}}}, {"mood": 1}),
    ({"properties": {"at": {"type": "object"}}}, {"at": {"mood": 1}}),
    ({"anyOf": [PLACE, {"type": "object"}]}, {"mood": 1}),
    ({"allOf": [PLACE, {"properties": {"n": {}}}]}, {"city": "P", "n": 1}),
    (
        {**PLACE, "if": {"required": ["city"]}, "then": {"properties": {"n": {}}}},
        {"city": "P", "n": 1},
    ),
    ({**PLACE, "anyOf": [{"required": ["city"]}, {"required": ["n"]}]}, {"city": "P"}),
]


@pytest.mark.parametrize(("schema", "arguments"), CLOSED)
def test_another_key_is_a_mismatch(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert ToolSchema("f", schema).judge(arguments) is Outcome.SCHEMA_MISMATCH


@pytest.mark.parametrize(("schema", "arguments"), OPEN)
def test_a_schema_is_taken_at_its_word(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert ToolSchema("f", schema).judge(arguments) is Outcome.VALID
