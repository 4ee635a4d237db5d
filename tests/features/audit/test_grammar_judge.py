"""Judgement of constrained answers: what clients write is read within limits, and proves a fault
only where grammars are enforced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.types import Constraint
from eaglegate.features.audit.grammars import find_breach
from eaglegate.features.audit.judge import GrammarJudge
from tests.http_server import answering

INTEGER = Constraint("json_schema", '{"type": "integer"}')
PLACES = {
    "$ref": lambda uri: {"$ref": uri},
    "not": lambda uri: {"not": {"$ref": uri}},
    "if": lambda uri: {"if": {"$ref": uri}, "then": False},
    "contains": lambda uri: {"properties": {"n": {"contains": {"$ref": uri}}}},
    "dependentSchemas": lambda uri: {"dependentSchemas": {"n": {"$ref": uri}}},
    "propertyNames": lambda uri: {"propertyNames": {"$ref": uri}},
    "unevaluatedProperties": lambda uri: {"unevaluatedProperties": {"$ref": uri}},
    "$dynamicRef": lambda uri: {"not": {"$dynamicRef": uri}},
    "$id": lambda uri: {"$id": uri, "not": {"$ref": "other.json"}},
    "$schema": lambda uri: {"$schema": uri, "type": "object"},
    "items": lambda uri: {"properties": {"n": {"items": {"$ref": uri}}}},
}


FILES = ("true", "false", '{"type": "object"}')


@pytest.fixture
async def judge() -> AsyncIterator[GrammarJudge]:
    child = GrammarJudge()
    yield child
    await child.aclose()


def make_tag(form: Any) -> Constraint:
    return Constraint("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


def constrain(schema: Any, in_tag: bool = False) -> Constraint:
    if in_tag:
        return make_tag({"type": "json_schema", "json_schema": schema})
    return Constraint("json_schema", json.dumps(schema))


@pytest.mark.parametrize("in_tag", [False, True])
async def test_a_reference_never_leaves_its_document(
    judge: GrammarJudge, tmp_path: Path, in_tag: bool
) -> None:
    files = {text: tmp_path / f"{number}.json" for number, text in enumerate(FILES)}
    for text, file in files.items():
        file.write_text(text)
    uris = [file.as_uri() for file in (*files.values(), tmp_path / "none.json")]
    with answering(200, b'{"type": "string"}') as (url, asked):
        for place, refer in PLACES.items():
            constraints = [constrain(refer(uri), in_tag) for uri in (*uris, f"{url}/x.json")]
            verdicts = {await judge.find_breach(one, '{"n": [1]}') for one in constraints}
            assert len(verdicts) == 1, f"the verdict on {place} depends on a file"
            assert verdicts <= {None, ""}, place
    assert not asked


async def test_a_pattern_is_matched_in_linear_time(judge: GrammarJudge) -> None:
    constraint = Constraint("regex", "(?:(?:a+)+x|a{60})y")
    assert await judge.find_breach(constraint, "a" * 60 + "y") == ""
    assert await judge.find_breach(constraint, "a" * 59 + "y")


DOUBLING = {
    "$defs": {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(40)
    }
    | {"d40": {"type": "string"}},
    "not": {"not": {"$ref": "#/$defs/d0"}},
}
WORDS = [{"type": "regex", "pattern": "[a-z]*"}] * 9
ONE = {"type": "const_string", "value": "1"}
HOSTILE = {
    "anyOf of 40 levels": (constrain(DOUBLING), "1"),
    "anyOf of 40 levels in a tag": (constrain(DOUBLING, in_tag=True), "1"),
    "nested text": (constrain({"not": {}}), "[" * 100_000),
    "nested schema": (Constraint("json_schema", '{"not":' * 50_000 + "{}" + "}" * 50_000), "1"),
    "large pattern": (Constraint("regex", "(?:(?:(?:a?){30}){30}){30}"), "a" * 27_000),
    "huge pattern": (Constraint("regex", "(?:(?:(?:a{1000}){1000}){1000}){1000}"), "a"),
    "many ends": (make_tag({"type": "sequence", "elements": [*WORDS, ONE]}), "a" * 5000),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_judgement_beyond_its_limits_is_unknown(judge: GrammarJudge, name: str) -> None:
    assert await judge.find_breach(*HOSTILE[name]) is None
    assert await judge.find_breach(INTEGER, "1") == ""
    assert await judge.find_breach(INTEGER, "true")


async def test_answers_are_judged_one_at_a_time(judge: GrammarJudge) -> None:
    texts = ("1", "true", "2", '"3"')
    breaches = await asyncio.gather(*(judge.find_breach(INTEGER, text) for text in texts))
    assert [breach == "" for breach in breaches] == [True, False, True, False]


async def test_a_judge_that_was_killed_is_replaced(judge: GrammarJudge) -> None:
    assert await judge.find_breach(INTEGER, "1") == ""
    assert judge._child is not None
    judge._child.kill()
    await judge._child.wait()
    assert await judge.find_breach(INTEGER, "1") == ""


OBJECT = {"type": "object", "additionalProperties": True}
BEHIND_ANOTHER = [
    (OBJECT | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}),
    (OBJECT | {"if": {"required": ["a"]}, "else": {"required": ["b"]}}, {"c": 1}),
    (OBJECT | {"patternProperties": {"^a": {"type": "string"}}}, {"a": 1}),
    (OBJECT | {"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, 1),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "type": "string"}, 1),
    ({"enum": [1], "type": "string"}, 1),
    ({"type": "string", "pattern": "a^b"}, "ab"),
    ({"type": "string", "pattern": "a$b"}, "ab"),
    ({"type": "string", "pattern": r"^\S$"}, "\u00a0"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, [1, 1]),
    ({"minLength": 3}, "ab"),
    ({"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["b"]}, {"a": 2}),
]


@pytest.mark.parametrize("in_tag", [False, True])
@pytest.mark.parametrize(("schema", "value"), BEHIND_ANOTHER)
def test_a_keyword_that_grammars_ignore_proves_nothing(
    schema: Any, value: Any, in_tag: bool
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert find_breach(constrain(schema, in_tag), text) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": "x"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, "x"),
        ({"type": "array", "items": {"type": "integer", "minimum": 2}}, [3, 1]),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, [1]),
        ({"type": "string", "pattern": r"^\d{2}$"}, "ab"),
        ({"type": "object", "properties": {"~/a": {"enum": [1]}}}, {"~/a": 2}),
    ],
)
def test_a_keyword_that_grammars_enforce_on_its_whole_path_is_proof(
    schema: Any, value: Any
) -> None:
    assert find_breach(constrain(schema), json.dumps(value))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a^b", "ab"), ("a$b", "ab"), (r"\s", "\u00a0"), (r"\W", "\u00e9"), ("[[:alpha:]]", "h]"),
     (r"\Qa\E", "QaE"), (r"\A", "A"), ("(?i)a", "B")],
)  # fmt: skip
def test_a_pattern_that_dialects_read_differently_proves_nothing(pattern: str, text: str) -> None:
    assert find_breach(Constraint("regex", pattern), text) is None


def test_numbers_and_names_of_any_length_are_read() -> None:
    assert find_breach(INTEGER, "1" * 5000) is None
    escaped = constrain({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert find_breach(escaped, '{"n": 1, "\\u006e": "x"}') is None


@pytest.mark.parametrize("in_tag", [False, True])
def test_numbers_beyond_a_float_prove_nothing(in_tag: bool) -> None:
    """They are correct, and a client could have them counted as a violation."""
    schema = {"type": "object", "properties": {"n": {"type": "number"}}}
    constraint = constrain(schema, in_tag)
    assert find_breach(constraint, '{"n": 1e999}') is None
    assert find_breach(constraint, '{"n": 1e99}') == ""


SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint("json_schema", SCHEMA), '{"n": 1}', '{"n": "1"}'),
        (Constraint("json_schema", SCHEMA), '{"n": 1}', '{"n": 1'),
        (Constraint("json_object"), "{}", "[]"),
        (Constraint("regex", "a+b"), "aab", "aabb"),
        (Constraint("choice", choices=("yes", "no")), "yes", "yesno"),
    ],
)
def test_grammars_are_checked_by_other_means(constraint: Constraint, good: str, bad: str) -> None:
    assert find_breach(constraint, good) == ""
    assert find_breach(constraint, bad)


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("grammar", "root ::= 'a'"),
        Constraint("regex", "("),
        Constraint("json_schema", '{"type": 3}'),
        Constraint("json_object", after_reasoning=True),
    ],
)
def test_unreadable_constraints_have_no_breach(constraint: Constraint) -> None:
    assert find_breach(constraint, "{}") is None


def tagged(*elements: Any) -> Constraint:
    """A structural tag as the gateway writes it for a model that reasons first."""
    end = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}
    space = {"type": "regex", "pattern": "[ \\n]{0,4}"}
    return make_tag({"type": "sequence", "elements": [end, space, *elements]})


JSON_PART = {"type": "json_schema", "json_schema": json.loads(SCHEMA)}
CALL = {"type": "tag", "begin": "<call>", "content": JSON_PART, "end": "</call>"}
CALLS = {
    "type": "tags_with_separator", "tags": [CALL], "separator": "\n", "at_least_one": True,
    "stop_after_first": False,
}  # fmt: skip
EITHER = {"type": "or", "elements": [{"type": "const_string", "value": "no"}, CALLS]}
FREE = {"type": "triggered_tags", "triggers": ["<call"], "tags": [CALL], "stop_after_first": False}


@pytest.mark.parametrize(
    ("element", "good", "bad"),
    [
        (JSON_PART, '{"n": 1}\n', '{"n": "1"}'),
        (JSON_PART, '\n\n {"n": 1}', 'x{"n": 1}'),
        (CALLS, '<call>{"n": 1}</call>\n<call>{"n": 2}</call>', '<call>{"n": 1}</call>\n'),
        (EITHER, "no", "nono"),
        (FREE, 'so <call>{"n": 1}</call> and', "so <call>{}</call>"),
        ({"type": "optional", "content": CALL}, "", "<call>"),
        ({"type": "regex", "pattern": "a+b"}, "aab", "aabb"),
    ],
)
def test_grammars_behind_a_reasoning_are_checked(element: Any, good: str, bad: str) -> None:
    constraint = tagged(element)
    assert find_breach(constraint, f"hm {{}}</think>{good}") == ""
    assert find_breach(constraint, f"hm {{}}</think>{bad}")
    assert find_breach(constraint, good), "the reasoning must end"


@pytest.mark.parametrize(
    "element",
    [
        {"type": "grammar", "grammar": "root ::= 'a'"},
        {"type": "regex", "pattern": "("},
        {"type": "json_schema", "json_schema": {"type": 3}},
        {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"},
        {"type": "json_schema", "json_schema": {"uniqueItems": True}},
        {"type": "json_schema"},
    ],
)
def test_tags_that_nothing_here_reads_are_unknown(element: Any) -> None:
    assert find_breach(tagged(element), "hm</think>[1, 1]") is None


def test_a_long_answer_to_a_tag_of_many_ways_is_given_up() -> None:
    ways = [{"type": "any_text"}] * 6
    assert find_breach(tagged(*ways, ONE), "</think>" + "a" * 80) is None
