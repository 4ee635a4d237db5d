"""A strict schema is enforced whole, or refused: each rule against xgrammar itself."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import pydantic
import pytest
import xgrammar
from openai.lib._pydantic import to_strict_json_schema
from xgrammar.testing import _is_grammar_accept_string

from eaglegate.engine.types import Constraint
from eaglegate.features.audit.grammars import find_breach
from eaglegate.server.apis.shared.constraints import check_strict
from eaglegate.server.errors import InvalidRequest
from eaglegate.text.grammars.enforcement import FORMATS
from eaglegate.text.parsing.message import matching

S, I = {"type": "string"}, {"type": "integer"}  # noqa: E741


def fields(*required: str, **schema: Any) -> dict[str, Any]:
    """An object with two numbers and nothing else, but for ``schema``."""
    closed = {"type": "object", "properties": {"a": I, "b": I}, "additionalProperties": False}
    return closed | ({"required": [*required]} if required else {}) | schema


def items(**schema: Any) -> dict[str, Any]:
    return {"type": "array", "items": I} | schema


def members(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": I} | schema


def needs(name: str, **schema: Any) -> dict[str, Any]:
    """An object that has the number ``name``, and may have others."""
    return {"type": "object", "properties": {name: I}, "required": [name]} | schema


LIST = {
    "v": {"type": "integer", "maximum": 5},
    "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
}
BROKEN: dict[str, tuple[Any, str]] = {
    "multipleOf int": (I | {"multipleOf": 5}, "7"),
    "multipleOf num": ({"type": "number", "multipleOf": 0.5}, "0.3"),
    "minimum int": (I | {"minimum": 5}, "3"),
    "maximum int": (I | {"maximum": 5}, "7"),
    "exclusiveMinimum int": (I | {"exclusiveMinimum": 5}, "5"),
    "exclusiveMaximum num": ({"type": "number", "exclusiveMaximum": 5}, "5"),
    "minLength": (S | {"minLength": 3}, '"ab"'),
    "maxLength": (S | {"maxLength": 3}, '"abcd"'),
    "pattern": (S | {"pattern": "^a+$"}, '"b"'),
    "pattern+maxLength": (S | {"pattern": "^a+$", "maxLength": 2}, '"aaa"'),
    "format+maxLength": (S | {"format": "email", "maxLength": 5}, '"aaaa@b.cd"'),
    "minItems": (items(minItems=2), "[1]"),
    "maxItems": (items(maxItems=1), "[1, 2]"),
    "uniqueItems": (items(uniqueItems=True), "[1, 1]"),
    "contains": (items(contains={"const": 3}), "[1]"),
    "prefixItems": ({"type": "array", "prefixItems": [I, S], "items": False}, '["a", 1]'),
    "minContains": (items(contains={"const": 3}, minContains=2), "[3]"),
    "minProperties": (members(minProperties=2), '{"a": 1}'),
    "maxProperties": (members(maxProperties=1), '{"a": 1, "b": 2}'),
    "minProperties with properties": (fields(minProperties=2), '{"a": 1}'),
    "patternProperties": (
        members(additionalProperties=False, patternProperties={"^a": I}),
        '{"b": 1}',
    ),
    "propertyNames": (members(propertyNames={"pattern": "^a+$"}), '{"b": 1}'),
    "dependentRequired": (fields(dependentRequired={"a": ["b"]}), '{"a": 1}'),
    "dependentSchemas": (fields(dependentSchemas={"a": {"required": ["b"]}}), '{"a": 1}'),
    "not": (I | {"not": {"const": 3}}, "3"),
    "not only": ({"not": S}, '"a"'),
    "if/then": (
        fields("a", **{"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}),
        '{"a": 1}',
    ),
    "oneOf": ({"oneOf": [I | {"minimum": 1}, I | {"maximum": 5}]}, "3"),
    "oneOf disjoint": ({"oneOf": [I, S]}, "true"),
    "anyOf": ({"anyOf": [I, S]}, "true"),
    "anyOf beside type": (fields(anyOf=[{"required": ["a"]}, {"required": ["b"]}]), "{}"),
    "ref beside": ({"$defs": {"x": I}, "$ref": "#/$defs/x", "minimum": 5}, "3"),
    "const": ({"const": 3}, "4"),
    "enum": ({"enum": [1, "a"]}, "2"),
    "enum beside type": (S | {"enum": ["a", 1]}, "1"),
    "const beside": (S | {"const": "a", "pattern": "b"}, '"b"'),
    "type list": ({"type": ["integer", "null"]}, '"a"'),
    "type list with bounds": ({"type": ["integer", "null"], "minimum": 5}, "3"),
    "unevaluatedProperties": (
        {"type": "object", "properties": {"a": I}, "unevaluatedProperties": False},
        '{"b": 1}',
    ),
    "unevaluatedItems": (
        {"type": "array", "prefixItems": [I], "unevaluatedItems": False},
        "[1, 2]",
    ),
    "no type minimum": ({"minimum": 5}, "3"),
    "no type properties": ({"properties": {"a": I}, "required": ["a"]}, "{}"),
    "no type items": ({"items": I}, '["a"]'),
    "no type pattern": ({"pattern": "^a$"}, '"b"'),
    "no type minLength": ({"minLength": 3}, '"a"'),
    "no type minItems": ({"minItems": 1}, "[]"),
    "dependencies": (fields(dependencies={"a": ["b"]}), '{"a": 1}'),
    "pattern unanchored": (S | {"pattern": "a"}, '"b"'),
    "required undeclared": (needs("a", required=["a", "z"]), '{"a": 1}'),
    "mult+min": (I | {"multipleOf": 5, "minimum": 7}, "5"),
    "mult 0.5 int": (I | {"multipleOf": 1.5}, "1"),
    "pp+prop val": (fields(properties={"b": I}, patternProperties={"^a": I}), '{"a": "x"}'),
    "pn+prop2": (
        members(properties={"b": I}, propertyNames={"pattern": "^a+$"}),
        '{"c": 1}',
    ),
    "pp+minP": (
        members(additionalProperties=False, patternProperties={"^a": I}, minProperties=2),
        '{"a": 1}',
    ),
    "minItems prefix": (items(prefixItems=[I], minItems=3), "[1, 2]"),
    "minProps no type": ({"minProperties": 2}, '{"a": 1}'),
    "addl schema": (members(properties={"a": I}, additionalProperties=S), '{"b": 1}'),
    "type list obj": (needs("a", type=["object", "null"]), "{}"),
    "nested ref": (
        {"$defs": {"n": fields("v", "next", properties=LIST)}, "$ref": "#/$defs/n"},
        '{"v": 1, "next": {"v": 9, "next": null}}',
    ),
    "allOf ref": ({"$defs": {"x": I | {"maximum": 5}}, "allOf": [{"$ref": "#/$defs/x"}]}, "9"),
    "minLength unicode": (S | {"maxLength": 1}, '"éé"'),
    "type obj no props additional false": (members(additionalProperties=False), '{"a": 1}'),
}
"""Schemas, and a text that does not match each."""
ANNOTATIONS = ("iri", "regex", "binary", "path", "password", "byte", "phone", "decimal", "color")


def enforced(schema: Any, text: str) -> bool:
    """Whether the grammar the gateway would use refuses ``text``."""
    tag = {"type": "structural_tag", "format": matching(schema)}
    return not _is_grammar_accept_string(xgrammar.Grammar.from_structural_tag(tag), text)


def refused(schema: Any) -> bool:
    try:
        check_strict(schema, "x")
    except InvalidRequest:
        return True
    return False


@pytest.mark.parametrize("name", BROKEN)
def test_a_strict_schema_is_enforced_or_refused(name):
    schema, text = BROKEN[name]
    nested = {
        "type": "object",
        "properties": {"a": schema},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": schema.get("$defs", {}),
    }
    assert refused(schema) == refused(nested)
    assert refused(schema) or enforced(schema, text)


@pytest.mark.parametrize("name", BROKEN)
def test_an_audit_blames_no_answer_that_xgrammar_allows(name):
    schema, text = BROKEN[name]
    tag = orjson.dumps({"format": matching(schema)}).decode()
    blamed = [
        find_breach(Constraint("json_schema", orjson.dumps(schema).decode()), text),
        find_breach(Constraint("structural_tag", tag), text),
    ]
    assert not any(blamed) or enforced(schema, text)


def test_most_of_what_xgrammar_enforces_is_taken():
    needless = [n for n, (s, text) in BROKEN.items() if refused(s) and enforced(s, text)]
    assert len(needless) <= 11, needless


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_that_is_taken_is_enforced(name):
    assert not refused(S | {"format": name})
    assert enforced(S | {"format": name}, '"- {"')


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_other_formats_are_refused(name):
    assert refused(S | {"format": name})


class Circle(pydantic.BaseModel):
    kind: Literal["circle"]
    radius: float = pydantic.Field(gt=0, le=10)


class Square(pydantic.BaseModel):
    kind: Literal["square"]
    side: int = pydantic.Field(ge=1)


class Drawing(pydantic.BaseModel):
    """A model as people send it through ``.parse()``."""

    name: str = pydantic.Field(min_length=1, max_length=40, description="Shown above.")
    shapes: list[Circle | Square] = pydantic.Field(max_length=8)
    main: Circle | Square = pydantic.Field(discriminator="kind")
    colour: Literal["red", "green"] | None
    made: str = pydantic.Field(pattern="^[0-9]{4}$")
    within: Drawing | None


def test_a_pydantic_model_is_taken():
    schema = to_strict_json_schema(Drawing)
    check_strict(schema, "x")
    check_strict(Drawing.model_json_schema(), "x")
    assert enforced(schema, "{}")


def test_a_set_of_pydantic_s_is_refused_by_the_name_of_its_keyword():
    class Tags(pydantic.BaseModel):
        tags: set[str]

    with pytest.raises(InvalidRequest, match=r"'uniqueItems' at \$\.properties\.tags") as error:
        check_strict(to_strict_json_schema(Tags), "response_format")
    assert error.value.param == "response_format"


def strict_format(schema: Any) -> dict[str, Any]:
    named = {"name": "x", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": named}


ARRAY = {"type": "array", "items": S, "uniqueItems": True}
HOLDER = {"type": "object", "properties": {"a": ARRAY}}


async def test_every_way_to_say_strict(lab):
    lab.says("[]")
    chat = await lab.chat(response_format=strict_format(ARRAY))
    assert (chat.status, chat.json["error"]["param"]) == (400, "response_format")
    function = {"name": "f", "strict": True, "parameters": HOLDER}
    tools = await lab.chat(tools=[{"type": "function", "function": function}])
    assert (tools.status, tools.json["error"]["param"]) == (400, "tools[0]")
    text = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": ARRAY}}
    responses = await lab.post("/v1/responses", {"model": "demo", "input": "x", "text": text})
    assert (responses.status, responses.json["error"]["param"]) == (400, "text.format.schema")
    shape = {"format": {"type": "json_schema", "schema": ARRAY}}
    asked = {"model": "demo", "max_tokens": 9, "output_config": shape}
    asked["messages"] = [{"role": "user", "content": "x"}]
    messages = await lab.post("/v1/messages", asked)
    assert messages.status == 400
    assert "uniqueItems" in messages.json["error"]["message"]


async def test_without_strict_it_is_taken_as_before(lab):
    lab.says("[]")
    wanted = strict_format(ARRAY)
    wanted["json_schema"]["strict"] = False
    assert (await lab.chat(response_format=wanted)).status == 200
    assert orjson.loads((await lab.chat(response_format=wanted)).body)["choices"]
