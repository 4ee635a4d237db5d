"""Objects whose schemas name their members have no others, unless the schema says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from eaglegate.text.events import Outcome
from eaglegate.text.parsing.tools import ToolSchema

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
