"""Schemas of a client: bounded where they come in, and no more than linear in what is done."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from eaglegate.server.apis.shared.constraints import (
    MAX_BRANCHES,
    MAX_BYTES,
    MAX_PROPERTIES,
    check_readable,
    schema_constraint,
)
from eaglegate.server.errors import InvalidRequest
from eaglegate.text.events import Outcome
from eaglegate.text.grammars.enforcement import Exclusion
from eaglegate.text.parsing.schemas import find_cycle
from eaglegate.text.parsing.tools import ToolSchema

STRING = {"type": "string"}


def branch(at: int, name: str = "kind") -> dict:
    return {"type": "object", "properties": {name: {"const": f"v{at}"}}, "required": [name]}


def objects(count: int) -> dict:
    return {"type": "object", "properties": {f"p{at}": STRING for at in range(count)}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"oneOf": [branch(at) for at in range(3000)]}, r"3000 branches of 'oneOf' at \$"),
        (objects(MAX_PROPERTIES + 1), "properties in all"),
        ({"description": "x" * MAX_BYTES}, "bytes of JSON"),
        ({"properties": {"a": {"anyOf": [{}] * (MAX_BRANCHES + 1)}}}, r"at \$.properties.a"),
    ],
)
def test_too_large_schemas_are_refused_with_the_place(schema, words):
    with pytest.raises(InvalidRequest, match=words):
        schema_constraint(schema, "response_format", strict=True)


def test_depth_is_bounded():
    schema: dict = {}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidRequest, match="levels"):
        schema_constraint(schema, "response_format")


@pytest.mark.parametrize("name", ["kind", "other"])
def test_a_discriminator_is_found_among_many_branches(name):
    branches = [branch(at, name) for at in range(MAX_BRANCHES)]
    began = time.process_time()
    schema_constraint({"oneOf": branches}, "response_format", strict=True)
    assert time.process_time() - began < 1


def test_types_and_a_few_pairs():
    assert Exclusion().holds([{"type": "integer"}, STRING, {"type": ["null", "array"]}])
    assert not Exclusion().holds([{"type": "integer"}, {"type": "number"}])
    mixed = [STRING, {"type": "integer"}, branch(1), branch(2)]
    assert Exclusion().holds(mixed)


def test_exclusion_gives_up_after_its_time_limit():
    wide = [
        {"properties": {"a": {"enum": list(range(at, at + 3000))}}, "required": ["a"]}
        for at in range(300)
    ]
    began = time.process_time()
    assert not Exclusion().holds(wide)
    assert time.process_time() - began < 2


def test_a_pattern_that_backtracks_costs_nothing():
    evil = {"type": "string", "pattern": "(a+)+$", "enum": ["a" * 60 + "!"]}
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        schema_constraint(evil, "response_format", strict=True)
    assert time.process_time() - began < 0.5


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def tree(*branches: dict) -> dict:
    """A value that each branch looks at, its items again."""
    below = [{"type": "array", "items": {"$ref": "#/$defs/d"}, **branch} for branch in branches]
    return {"$defs": {"d": {"anyOf": [*below, STRING]}}, "properties": {"x": {"$ref": "#/$defs/d"}}}


CHAIN = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(5000)}
HOSTILE = {
    "backtracking": ({"properties": {"x": {"pattern": "^(a+)+$"}}}, "a" * 200_000 + "!"),
    "captures": ({"properties": {"x": {"pattern": "(.*a){20}b"}}}, "a" * 200_000),
    "repeats": ({"properties": {"x": {"pattern": "((a{30}){30}){30}"}}}, "a" * 9000),
    "look-around": ({"properties": {"x": {"pattern": "(?=(a+)+$)b"}}}, "a" * 60),
    "unique": ({"properties": {"x": {"uniqueItems": True}}}, [{"n": n} for n in range(6000)]),
    "recursion": (tree({"minItems": 2}, {"minItems": 1}), nested(60)),
    "self": ({"$ref": "#"}, 1),
    "chain": ({"$defs": CHAIN, "$ref": "#/$defs/d0"}, 1),
    "many": (objects(MAX_PROPERTIES), 1),
    "patterns": ({"properties": {f"p{n}": {"pattern": r"^\w{40}$"} for n in range(3000)}}, "x"),
    "values": ({"properties": {"x": {"items": {"type": "integer"}}}}, list(range(200_000))),
    "branches": (
        {"properties": {"x": {"items": {"anyOf": [STRING, {"type": "integer"}] * 200}}}},
        list(range(20_000)),
    ),
    "zero": ({"properties": {"x": {"multipleOf": 0}}}, 1),
    "list": ({"properties": []}, 1),
    "object": ({"anyOf": {}}, 1),
    "draft": ({"$schema": 5}, 1),
    "broken": ({"properties": {"x": {"pattern": "("}}}, "a" * 60),
    "far": ({"properties": {"x": {"$ref": "http://127.0.0.1:1/none"}}}, 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_costs_little(name):
    """The aim is 20 ms; the best of three, and room for a loaded machine."""
    schema, value = HOSTILE[name]
    spent = []
    for _ in range(3):
        began = time.process_time()
        outcome = ToolSchema("t", schema).judge({"x": value})
        spent.append(time.process_time() - began)
    assert outcome in (Outcome.UNCHECKED, Outcome.VALID, Outcome.SCHEMA_MISMATCH)
    assert min(spent) < 0.04, spent


@pytest.mark.parametrize("name", ["repeats", "look-around", "recursion", "self", "chain", "zero"])
def test_hostile_schemas_are_reported_as_unchecked(name):
    schema, value = HOSTILE[name]
    assert ToolSchema("t", schema).judge({"x": value}) is Outcome.UNCHECKED


def twice(reference: str, *keywords: str) -> dict:
    """Definitions that each apply the next one twice, by a reference that ends in its name. The
    ``keywords`` name a definition."""
    names = [f"d{at}" for at in range(12)]
    calls = {name: [{"$ref": f"{reference}{later}"}] * 2 for name, later in pairwise(names)}
    return {
        name: {"allOf": calls.get(name, [{"type": "object"}])} | dict.fromkeys(keywords, name)
        for name in names
    }


@pytest.mark.parametrize(
    "schema",
    [
        *(
            {"$defs": twice(f"{base}#/$defs/"), "allOf": [{"$ref": f"{base}#/$defs/d0"}]}
            for base in ("/", ".", "json-schema:///")
        ),
        {"$defs": twice("#", "$anchor"), "allOf": [{"$ref": "#d0"}]},
        {"$defs": twice("", "$id"), "allOf": [{"$ref": "d0"}]},
        {
            "$defs": {"a": {"$id": "a", "$defs": twice("#/$defs/")}, "d1": True},
            "$ref": "#/$defs/a/$defs/d0",
        },
        {"$dynamicRef": "#", "properties": {"x": {"$dynamicRef": "#"}}},
    ],
    ids=["path", "dot", "url", "anchor", "id", "moved base", "dynamic"],
)
def test_references_that_are_not_counted_are_not_followed(schema):
    """Each definition doubles the work, and thirty stopped the gateway for minutes."""
    assert ToolSchema("t", schema).judge({"x": 1}) is Outcome.UNCHECKED


def test_an_id_alone_does_not_prevent_a_check():
    schema = {"$id": "http://a/b", "properties": {"id": STRING, "x": {"type": "integer"}}}
    assert ToolSchema("t", schema).judge({"x": "1"}) is Outcome.SCHEMA_MISMATCH


def test_a_recursive_schema_is_checked_where_the_value_is_small():
    schema = tree({"minItems": 2}, {"minItems": 1})
    assert ToolSchema("t", schema).judge({"x": ["a", ["b"]]}) is Outcome.VALID
    assert ToolSchema("t", schema).judge({"x": [[1]]}) is Outcome.SCHEMA_MISMATCH


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": []}, r"\$.properties"),
        ({"properties": {"x": {"multipleOf": 0}}}, r"\$.properties.x.multipleOf"),
        ({"anyOf": {}}, r"\$.anyOf"),
        ({"$schema": 5}, r"\$.\$schema"),
        ({"properties": {"x": {"required": "x"}}}, r"\$.properties.x.required"),
    ],
)
def test_a_schema_that_means_nothing_is_refused_by_its_place(schema, place):
    with pytest.raises(InvalidRequest, match=place):
        check_readable(schema, "tools[0]")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"type": "float", "nullable": True}}},
        {"properties": {"x": {"type": "anything"}}},
        {"properties": {"x": {"items": [STRING]}}},
        {"properties": {"x": {"exclusiveMinimum": True, "minimum": 0}}},
        {"type": "object", "unknown": 1},
    ],
)
def test_unusual_spellings_of_schemas_are_accepted(schema):
    check_readable(schema, "tools[0]")


# -- references that lead back to their own place

CYCLES = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}},
    {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}},
     "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}},
    {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
]  # fmt: skip
TREE = {
    "type": "object",
    "properties": {
        "left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        "twice": {"allOf": [{"$ref": "#/$defs/node"}]},
    },
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
"""Recursive, with a value between each reference and its place."""


def ways_to_ask(schema):
    """Each way to have an answer match a schema: path, body, and the field of the error."""
    function = {"name": "f", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    strict = [{"type": "function", "function": function | {"strict": True}}]
    yield "chat/completions", chat | {"response_format": wanted}
    yield "chat/completions", chat | {"structured_outputs": {"json": schema}}
    yield "chat/completions", chat | {"structured_outputs": {"structural_tag": json.dumps(tag)}}
    if schema.get("type") == "object":
        yield "chat/completions", chat | {"tools": tools, "tool_choice": "required"}
        yield "chat/completions", chat | {"tools": strict}
    yield "completions", {"model": "demo", "prompt": "x", "response_format": wanted}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    yield "responses", {"model": "demo", "input": "hi", "text": text}


@pytest.mark.parametrize("schema", CYCLES)
async def test_references_that_lead_nowhere_are_refused_before_generation(lab, schema):
    for path, body in ways_to_ask(schema):
        answer = await lab.post(f"/v1/{path}", body)
        assert answer.status == 400, (path, body, answer.body)
        assert not lab.engine.requests


async def test_recursive_schemas_pass(lab):
    lab.says("{}")
    for path, body in ways_to_ask(TREE):
        if "strict" not in str(body):
            answer = await lab.post(f"/v1/{path}", body)
            assert answer.status == 200, (path, body, answer.body)


async def test_a_free_call_may_have_any_schema(lab):
    """No grammar is made of it."""
    lab.says("x")
    tools = [{"type": "function", "function": {"name": "f", "parameters": CYCLES[2]}}]
    assert (await lab.chat(tools=tools)).status == 200


def test_long_chains_of_references_are_searched_in_linear_time():
    parts = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(5000)}
    chain = {"$defs": parts | {"a5000": {"type": "string"}}, "$ref": "#/$defs/a0"}
    assert find_cycle(chain) == ""
    chain["$defs"]["a5000"] = {"$ref": "#/$defs/a17"}
    assert find_cycle(chain)
    double = {f"b{at}": {"anyOf": [{"$ref": f"#/$defs/b{at + 1}"}] * 2} for at in range(200)}
    assert find_cycle({"$defs": double | {"b200": {}}, "$ref": "#/$defs/b0"}) == ""
