"""Outputs that models damage, and values that quote their own format: one table, every cutting.

``⟪marker⟫`` is one added token, everything else ordinary text. The rules are in docs/parsers.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from eaglegate.text.events import (
    ContentDelta,
    FinishReason,
    Outcome,
    ParserEvent,
    Phase,
    Repair,
    ToolCallEnd,
)
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import Folded, fold
from eaglegate.text.parsing.registry import reasoning_format, tool_format
from eaglegate.text.parsing.vocabulary import Vocabulary
from tests.text.parsing.golden_corpus import Marker, pieces_of
from tests.text.parsing.golden_cuts import every, randomly
from tests.text.parsing.golden_tokenizer import encode, tokenizer

M3 = "⟪]<]minimax[>[⟫"
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS: dict[str, Any] = {
    "ping": {"type": "object", "properties": {}},
    "city": {"type": "object", "properties": {"city": STRING}, "required": ["city"]},
    "write": {"type": "object", "properties": {"path": STRING, "text": STRING}},
    "count": {"type": "object", "properties": {"n": INTEGER, "tags": {"type": "array"}}},
}


@dataclass(frozen=True)
class Damage:
    id: str
    parser: str
    output: str
    calls: tuple[tuple[str, Any, str], ...] = ()
    """Name, arguments as an object or as text, and outcome."""
    content: str = ""
    reasoning: str = ""
    thinks: str | None = None
    finish: FinishReason = FinishReason.STOP
    tools: dict[str, Any] | None = field(default_factory=lambda: TOOLS)


def read(case: Damage) -> list[Folded]:
    """The answer at every cutting."""
    return list(map(fold, read_events(case)))


def read_once(case: Damage) -> Folded:
    """The answer in tokens of words, one a step."""
    return fold(next(read_events(case)))


def read_events(case: Damage) -> Iterator[list[ParserEvent]]:
    """The answer in tokens of words and of letters, 1 to 8 of them a step, and all in one."""
    pieces = pieces_of(case.output)
    form = tool_format(case.parser)
    own = (*form.markers, *reasoning_format(case.thinks).markers)
    used = [piece.token for piece in pieces if isinstance(piece, Marker)]
    made = tokenizer(tuple(m for m in dict.fromkeys(used) if m in own or m == form.fragment))
    vocabulary = Vocabulary.from_tokenizers(made)
    words, letters = (encode(made, pieces, in_letters=small) for small in (False, True))
    cuttings = [every(ids, size) for ids in (words, letters) for size in range(1, 9)]
    for steps in (*cuttings, every(words, len(words) or 1), randomly(words, 1)):
        parser = make_parser(
            vocabulary,
            tool_parser=case.parser,
            reasoning_parser=case.thinks,
            tools=None
            if case.tools is None
            else [{"name": name, "parameters": schema} for name, schema in case.tools.items()],
        )
        events = [event for step in steps for event in parser.feed(step)]
        yield [*events, *parser.flush(case.finish)]


def check(case: Damage) -> None:
    for folded in read(case):
        assert folded.content == case.content
        assert folded.reasoning == case.reasoning
        got = [(c.name, c.arguments, str(c.outcome)) for c in folded.calls]
        wanted = [
            (name, arguments if isinstance(arguments, str) else json.dumps(arguments), outcome)
            for name, arguments, outcome in case.calls
        ]
        loose = [_parsed(call) for call in got]
        assert got == wanted or loose == [_parsed(call) for call in wanted]


def _parsed(call: tuple[str, str, str]) -> tuple[str, Any, str]:
    """Arguments by value, duplicate keys and their order included."""
    name, arguments, outcome = call
    try:
        return name, json.loads(arguments, object_pairs_hook=list), outcome
    except ValueError:
        return name, arguments, outcome


def qwen(value: str, name: str = "text", tool: str = "write", close: str = "</parameter>") -> str:
    return (
        f"⟪<tool_call>⟫\n<function={tool}>\n<parameter={name}>\n{value}\n{close}\n"
        "</function>\n⟪</tool_call>⟫"
    )


def minimax(value: str) -> str:
    return (
        '⟪<minimax:tool_call>⟫\n<invoke name="write">\n'
        f'<parameter name="text">{value}</parameter>\n'
        "</invoke>\n⟪</minimax:tool_call>⟫"
    )


def glm(value: str) -> str:
    return (
        "⟪<tool_call>⟫write\n⟪<arg_key>⟫text⟪</arg_key>⟫\n"
        f"⟪<arg_value>⟫{value}⟪</arg_value>⟫\n⟪</tool_call>⟫"
    )


def hermes(value: str) -> str:
    return f'⟪<tool_call>⟫\n{{"name": "write", "arguments": {{"text": "{value}"}}}}\n⟪</tool_call>⟫'


def kimi(value: str) -> str:
    return (
        "⟪<|tool_calls_section_begin|>⟫⟪<|tool_call_begin|>⟫functions.write:0"
        f'⟪<|tool_call_argument_begin|>⟫{{"text": "{value}"}}'
        "⟪<|tool_call_end|>⟫⟪<|tool_calls_section_end|>⟫"
    )


def deepseek_v3(value: str) -> str:
    return (
        "⟪<｜tool▁calls▁begin｜>⟫⟪<｜tool▁call▁begin｜>⟫function⟪<｜tool▁sep｜>⟫write\n```json\n"
        f'{{"text": "{value}"}}\n```⟪<｜tool▁call▁end｜>⟫⟪<｜tool▁calls▁end｜>⟫'
    )


def mistral(value: str) -> str:
    return f'⟪[TOOL_CALLS]⟫write⟪[ARGS]⟫{{"text": "{value}"}}'


def granite(value: str) -> str:
    return f'⟪<|tool_call|>⟫[{{"name": "write", "arguments": {{"text": "{value}"}}}}]'


WRITERS = {
    "qwen3_coder": (qwen, ("<tool_call>", "</tool_call>")),
    "minimax_m2": (minimax, ("<minimax:tool_call>", "</minimax:tool_call>")),
    "glm45": (
        glm,
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "hermes": (hermes, ("<tool_call>", "</tool_call>")),
    "kimi_k2": (
        kimi,
        ("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    ),
    "deepseek_v3": (
        deepseek_v3,
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    ),
    "mistral": (mistral, ("[TOOL_CALLS]", "[ARGS]")),
    "granite": (granite, ("<|tool_call|>",)),
}
QUOTING = [
    Damage(
        f"{parser}-{marker}-{place}",
        parser,
        writer(value),
        (("write", {"text": value.replace("⟪", "").replace("⟫", "")}, "valid"),),
    )
    for parser, (writer, markers) in WRITERS.items()
    for marker in markers
    for place, value in {
        "first": f"⟪{marker}⟫ is it",
        "inside": f"Write ⟪{marker}⟫ x",
        "twice": f"a⟪{marker}⟫⟪{marker}⟫b ⟪{marker}⟫ c",
        "spelled": f"Write {marker} x",
    }.items()
    if (parser, marker, place) != ("glm45", "<arg_value>", "first")
]
"""An opening token at the beginning of its own value is written twice, and no quotation."""


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in QUOTING])
def test_a_value_may_quote_any_marker(case):
    check(case)


CALL = (
    "⟪<tool_call>⟫\n<function=city>\n<parameter=city>\nP\n</parameter>\n</function>\n⟪</tool_call>⟫"
)
FORGOTTEN = [
    Damage(
        "quoted-call",
        "qwen3_coder",
        qwen(f"see {CALL} there"),
        (("write", {"text": f"see {CALL} there".replace("⟪", "").replace("⟫", "")}, "valid"),),
    ),
    Damage(
        "value-not-closed",
        "qwen3_coder",
        "⟪<tool_call>⟫\n<function=city>\n<parameter=city>\nParis\n⟪</tool_call>⟫",
        (("city", {"city": "Paris\n"}, "malformed"),),
    ),
    Damage(
        "value-not-closed-then-a-call",
        "qwen3_coder",
        f"⟪<tool_call>⟫\n<function=city>\n<parameter=city>\nParis\n⟪</tool_call>⟫\n{CALL}",
        (("city", {"city": "Paris\n"}, "malformed"), ("city", {"city": "P"}, "valid")),
    ),
    Damage(
        "glm-value-not-closed",
        "glm45",
        "⟪<tool_call>⟫write\n⟪<arg_key>⟫path⟪</arg_key>⟫\n⟪<arg_value>⟫a⟪</arg_value>⟫\n"
        "⟪<arg_key>⟫text⟪</arg_key>⟫\n⟪<arg_value>⟫Paris⟪</tool_call>⟫",
        (("write", {"path": "a", "text": "Paris"}, "malformed"),),
    ),
    Damage(
        "string-not-closed",
        "hermes",
        '⟪<tool_call>⟫\n{"name": "city", "arguments": {"city": "Paris\n⟪</tool_call>⟫',
        (("city", '{"city": "Paris\\n', "malformed"),),
    ),
    Damage(
        "string-not-closed-then-a-call",
        "hermes",
        '⟪<tool_call>⟫{"name": "city", "arguments": {"city": "Paris ⟪</tool_call>⟫\n'
        '⟪<tool_call>⟫{"name": "ping", "arguments": {}}⟪</tool_call>⟫',
        (("city", '{"city": "Paris ', "malformed"), ("ping", {}, "valid")),
    ),
    Damage(
        "content-behind-a-quotation",
        "qwen3_coder",
        qwen("a ⟪</tool_call>⟫ b") + "\nDone.",
        (("write", {"text": "a </tool_call> b"}, "valid"),),
        content="Done.",
    ),
]
UNWRAPPED = [
    Damage(
        "function-alone",
        "qwen3_coder",
        "Look.\n<function=city>\n<parameter=city>\nP\n</parameter>\n</function>",
        (("city", {"city": "P"}, "valid"),),
        content="Look.",
    ),
    Damage(
        "function-and-the-closing-tag",
        "qwen3_coder",
        "<function=city>\n<parameter=city>\nP\n</parameter>\n</function>\n⟪</tool_call>⟫",
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "two-functions-then-text",
        "qwen3_coder",
        "<function=ping>\n</function>\n<function=ping></function>\nDone.",
        (("ping", {}, "valid"), ("ping", {}, "valid")),
        content="Done.",
    ),
    Damage(
        "function-that-is-not-offered",
        "qwen3_coder",
        "Try\n<function=nope>\n<parameter=city>",
        content="Try\n<function=nope>\n<parameter=city>",
    ),
    Damage(
        "function-in-prose",
        "qwen3_coder",
        "The tag `<function=city>\n<parameter=city>` opens it, <function=city> alone does not.",
        content="The tag `<function=city>\n<parameter=city>` opens it, "
        "<function=city> alone does not.",
    ),
    Damage(
        "invoke-alone",
        "minimax_m2",
        '<invoke name="city">\n<parameter name="city">P</parameter>\n</invoke>',
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "dsml-invoke-alone",
        "deepseek_v32",
        "⟪｜DSML｜⟫".join(
            [
                "Look.\n\n<",
                'invoke name="city">\n<',
                'parameter name="city" string="true">P</',
                "parameter>\n</",
                "invoke>",
            ]
        ),
        (("city", {"city": "P"}, "valid"),),
        content="Look.",
    ),
]
CLOSES = [
    Damage(
        f"close-{close}",
        "qwen3_coder",
        qwen("Paris", "city", "city", close),
        (("city", {"city": "Paris"}, "valid"),),
    )
    for close in ("</parameter1>", "</parameters>", "</parameter=city>", "</parameter >")
] + [
    Damage(
        "close-quoted",
        "qwen3_coder",
        qwen("a </parameter1> b"),
        (("write", {"text": "a </parameter1> b"}, "valid"),),
    )
]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in [*FORGOTTEN, *UNWRAPPED, *CLOSES]]
)
def test_closing_and_opening_tags(case):
    check(case)


def named(body: str) -> str:
    return f"⟪<tool_call>⟫{body}⟪</tool_call>⟫"


REPAIRED = [
    Damage(
        "args",
        "hermes",
        named('{"name": "city", "args": {"city": "P"}}'),
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "input-before-the-name",
        "hermes",
        named('{"input": {"city": "P"}, "name": "city"}'),
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "flat",
        "hermes",
        named('{"name": "count", "n": 3, "tags": ["a", "b"]}'),
        (("count", {"n": 3, "tags": ["a", "b"]}, "valid"),),
    ),
    Damage(
        "flat-and-cut",
        "hermes",
        '⟪<tool_call>⟫{"name": "city", "city": "P',
        (("city", "", "truncated"),),
        finish=FinishReason.LENGTH,
    ),
    Damage(
        "nothing-else-is-no-argument",
        "hermes",
        named('{"name": "ping", "id": "x", "type": "function"}'),
        (("ping", {}, "valid"),),
    ),
    Damage(
        "double-encoded",
        "hermes",
        named(r'{"name": "city", "arguments": "{\"city\": \"P\\u00e9 \\\"x\\\"\"}"}'),
        (("city", r'{"city": "P\u00e9 \"x\""}', "valid"),),
    ),
    Damage(
        "double-encoded-kimi",
        "kimi_k2",
        kimi("x").replace('{"text": "x"}', r'"{\"text\": \"x\"}"'),
        (("write", {"text": "x"}, "valid"),),
    ),
    Damage(
        "a-string-that-is-no-object",
        "hermes",
        named('{"name": "city", "arguments": "Paris"}'),
        (("city", '"Paris"', "malformed"),),
    ),
    Damage(
        "trailing-commas",
        "hermes",
        named('{"name": "count", "arguments": {"n": 1, "tags": ["a,]", "b" , ] ,\n}}'),
        (("count", {"n": 1, "tags": ["a,]", "b"]}, "valid"),),
    ),
    Damage(
        "control-characters",
        "hermes",
        named('{"name": "write", "arguments": {"path": "a\tb", "text": "one\n\\\n two\\n"}}'),
        (("write", {"path": "a\tb", "text": "one\n\n two\n"}, "valid"),),
    ),
    Damage(
        "invalid-escapes",
        "kimi_k2",
        kimi(r"grep \d+ C:\path it\'s \\d \u00e9 \/"),
        (("write", {"text": r"grep \d+ C:\path it's \d é /"}, "valid"),),
    ),
    Damage(
        "missing-brackets",
        "hermes",
        named('{"name": "count", "arguments": {"n": 1, "tags": ["a]", {"b": 2'),
        (("count", {"n": 1, "tags": ["a]", {"b": 2}]}, "valid"),),
    ),
    Damage(
        "missing-brackets-and-a-value",
        "hermes",
        named('{"name": "count", "arguments": {"n":'),
        (("count", '{"n":', "malformed"),),
    ),
    Damage(
        "quoted-integer",
        "qwen3_coder",
        qwen('"5"', "n", "count"),
        (("count", {"n": 5}, "valid"),),
    ),
    Damage(
        "quoted-list",
        "qwen3_coder",
        qwen(r'"[\"a\"]"', "tags", "count"),
        (("count", {"tags": ["a"]}, "valid"),),
    ),
    Damage(
        "quoted-word",
        "qwen3_coder",
        qwen('"five"', "n", "count"),
        (("count", {"n": '"five"'}, "schema_mismatch"),),
    ),
    Damage(
        "wrapper",
        "qwen3_coder",
        qwen('{"city": "P"}', "arguments", "city"),
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "wrapper-dsml",
        "deepseek_v32",
        "⟪｜DSML｜⟫".join(
            [
                "<",
                "function_calls>\n<",
                'invoke name="city">\n<',
                'parameter name="arguments" string="false">{"city": "P"}</',
                "parameter>\n</",
                "invoke>\n</",
                "function_calls>",
            ]
        ),
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "repeated-alike",
        "qwen3_coder",
        qwen("P\n</parameter>\n<parameter=city>\nP", "city", "city"),
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "repeated-otherwise",
        "qwen3_coder",
        qwen("P\n</parameter>\n<parameter=city>\nQ", "city", "city"),
        (("city", {"city": "P"}, "malformed"),),
    ),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in REPAIRED])
def test_arguments_that_can_mean_one_thing_only(case):
    check(case)


@pytest.mark.parametrize(
    ("output", "arguments", "outcome"),
    [
        ('{"name": "city", "args": {"city": "P"}}', "{}", "malformed"),
        ('{"name": "city", "arguments": {"city": "P",}}', '{"city": "P",}', "malformed"),
        (r'{"name": "city", "arguments": "{\"a\": 1}"}', r'"{\"a\": 1}"', "malformed"),
    ],
)
def test_without_repairs_arguments_stay_as_written(output, arguments, outcome):
    end, folded = _ended(output, repairs=False)
    assert (folded.calls[0].arguments, end.outcome) == (arguments, outcome)
    assert (end.repairs, end.written) == ((), None)


def test_what_the_model_wrote_stays_in_the_event():
    end, folded = _ended('{"name": "city", "arguments": {"city": "P",}}')
    assert folded.calls[0].arguments == '{"city": "P"}'
    assert (end.outcome, end.repairs) == ("valid", (Repair.TRAILING_COMMA,))
    assert end.written == '{"city": "P",}'


def _ended(body: str, **options: Any) -> tuple[ToolCallEnd, Folded]:
    made = tokenizer(("<tool_call>", "</tool_call>"))
    parser = make_parser(
        Vocabulary.from_tokenizers(made),
        tool_parser="hermes",
        tools=[{"name": name, "parameters": schema} for name, schema in TOOLS.items()],
        **options,
    )
    ids = encode(made, pieces_of(named(body)))
    events = [*parser.feed(ids), *parser.flush(FinishReason.STOP)]
    (end,) = [event for event in events if isinstance(event, ToolCallEnd)]
    return end, fold(events)


PARAMETER_TYPES = [
    ({"type": "float"}, "3.5", 3.5),
    ({"type": "int"}, "3", 3),
    ({"type": "bool"}, "True", True),
    ({"type": "dict"}, '{"a": 1}', {"a": 1}),
    ({"type": "list"}, "['a']", ["a"]),
    ({"type": "str"}, "3", "3"),
    ({"type": "string", "nullable": True}, "null", None),
    ({"type": ["Integer", "none"]}, "None", None),
    ({}, "3.5", 3.5),
    ({}, "text", "text"),
    (True, "[1]", [1]),
    ({"description": "d", "default": 0}, "7", 7),
    ({"$ref": "#/$defs/a~1b"}, "3", 3),
    ({"$ref": "#/$defs/c%20d"}, "3", 3),
    ({"allOf": [{"$ref": "#/$defs/a~1b"}, {"minimum": 0}]}, "3", 3),
    ({"properties": {"x": {}}}, '{"x": 1}', {"x": 1}),
    ({"items": {}}, "[1]", [1]),
]


@pytest.mark.parametrize(("schema", "text", "value"), PARAMETER_TYPES)
def test_types_that_clients_write(schema, text, value):
    defs = {"a/b": {"type": "integer"}, "c d": {"type": "integer"}}
    tool = {"type": "object", "$defs": defs, "properties": {"v": schema}}
    check(
        Damage(
            "",
            "qwen3_coder",
            qwen(text, "v", "t"),
            (("t", {"v": value}, "valid"),),
            tools={"t": tool},
        )
    )


NUMBER = {"type": "object", "properties": {"v": {"type": "number"}}}


@pytest.mark.parametrize(
    "root",
    [
        {"$ref": "#/$defs/P", "$defs": {"P": NUMBER}},
        {"oneOf": [NUMBER, {"type": "object", "properties": {"w": {"type": "string"}}}]},
        {"allOf": [{"type": "object"}, NUMBER]},
        {"type": "object", "additionalProperties": {"type": "number"}},
    ],
    ids=["ref", "oneOf", "allOf", "additionalProperties"],
)
def test_roots_that_are_no_plain_object(root):
    call = (("t", {"v": 3.5}, "schema_mismatch" if "oneOf" in root else "valid"),)
    check(Damage("", "qwen3_coder", qwen("3.5", "v", "t"), call, tools={"t": root}))


def harmony(*messages: str) -> str:
    return "⟪<|start|>⟫assistant".join(messages)


SECTION = kimi("x")
WRITTEN = (("write", {"text": "x"}, "valid"),)
CUT = "⟪<|tool_call_begin|>⟫functions.write:1⟪<|tool_call_argument_begin|>⟫{"
QUOTED = SECTION.replace("⟪", "").replace("⟫", "")
WHOLE_ANSWERS = [
    Damage(
        "llama4-content-before",
        "llama4_json",
        'Hi. {"name": "city", "parameters": {"city": "P"}}',
        (("city", {"city": "P"}, "valid"),),
        content="Hi. ",
    ),
    Damage(
        "llama4-content-directly-before",
        "llama4_json",
        'Hi.{"name":"ping","parameters":{}}; {"name":"ping","parameters":{}}',
        (("ping", {}, "valid"), ("ping", {}, "valid")),
        content="Hi.",
    ),
    Damage(
        "llama4-other-objects",
        "llama4_json",
        'A {"name": "nope", "parameters": {}} {"a": 1} {"name": "ping"} {x}',
        content='A {"name": "nope", "parameters": {}} {"a": 1} {"name": "ping"} {x}',
    ),
    Damage(
        "llama4-list-behind-content",
        "llama4_pythonic",
        '⟪<|python_start|>⟫Let me see: [city(city="P"), ping()]⟪<|python_end|>⟫',
        (("city", {"city": "P"}, "valid"), ("ping", {}, "valid")),
        content="Let me see: ",
    ),
    Damage(
        "granite-3.3",
        "granite",
        "<think>Two and two.</think><response>It is 4.</response>",
        content="It is 4.",
        reasoning="Two and two.",
        thinks="granite",
    ),
    Damage(
        "granite-3.3-quotes",
        "granite",
        "<think>Hm.</think>\n<response>Write </response> or <response> here.</response>\n",
        content="Write </response> or <response> here.",
        reasoning="Hm.",
        thinks="granite",
    ),
    Damage(
        "granite-3.3-call",
        "granite",
        '<think>Hm.</think><response>Look.</response>⟪<|tool_call|>⟫[{"name": "ping", '
        '"arguments": {}}]',
        (("ping", {}, "valid"),),
        content="Look.",
        reasoning="Hm.",
        thinks="granite",
    ),
    Damage(
        "granite-without-thinking",
        "granite",
        "The tag <response> is text, </response> too.",
        content="The tag <response> is text, </response> too.",
        thinks="granite",
    ),
    Damage(
        "to-assistant",
        "openai",
        harmony(
            "⟪<|channel|>⟫analysis⟪<|message|>⟫Hm.⟪<|end|>⟫",
            " to=assistant⟪<|channel|>⟫final⟪<|message|>⟫It rains.⟪<|return|>⟫",
        ),
        content="It rains.",
        reasoning="Hm.",
        thinks="openai_gptoss",
    ),
    Damage(
        "preamble-and-answer",
        "openai",
        harmony(
            "⟪<|channel|>⟫commentary⟪<|message|>⟫Let me see.⟪<|end|>⟫",
            "⟪<|channel|>⟫final⟪<|message|>⟫It rains.⟪<|return|>⟫",
        ),
        content="Let me see.\n\nIt rains.",
        thinks="openai_gptoss",
    ),
    Damage("name-mistral", "mistral", "⟪[TOOL_CALLS]⟫ping", (("ping", {}, "valid"),)),
    Damage("name-glm47", "glm47", "⟪<tool_call>⟫ping", (("ping", {}, "valid"),)),
    Damage(
        "name-kimi",
        "kimi_k2",
        "⟪<|tool_calls_section_begin|>⟫⟪<|tool_call_begin|>⟫functions.ping:0",
        (("ping", {}, "valid"),),
    ),
    Damage(
        "name-deepseek-v31",
        "deepseek_v31",
        "⟪<｜tool▁calls▁begin｜>⟫⟪<｜tool▁call▁begin｜>⟫ping",
        (("ping", {}, "valid"),),
    ),
    Damage(
        "name-deepseek-v3",
        "deepseek_v3",
        "⟪<｜tool▁calls▁begin｜>⟫⟪<｜tool▁call▁begin｜>⟫function⟪<｜tool▁sep｜>⟫ping",
        (("ping", {}, "valid"),),
    ),
    Damage(
        "name-qwen3-coder",
        "qwen3_coder",
        "⟪<tool_call>⟫\n<function=ping",
        (("ping", {}, "valid"),),
    ),
    Damage(
        "name-that-needs-arguments",
        "mistral",
        "⟪[TOOL_CALLS]⟫city",
        (("city", {}, "schema_mismatch"),),
    ),
    Damage("no-name-gemma4", "gemma4", "⟪<|tool_call>⟫call:"),
    *(
        Damage(f"name-cut-{parser}", parser, output, finish=FinishReason.LENGTH)
        for parser, output in {
            "mistral": "⟪[TOOL_CALLS]⟫pi",
            "glm47": "⟪<tool_call>⟫pi",
            "kimi_k2": "⟪<|tool_calls_section_begin|>⟫⟪<|tool_call_begin|>⟫functions.pi",
            "qwen3_coder": "⟪<tool_call>⟫\n<function=pi",
            "hermes": '⟪<tool_call>⟫{"name": "pi',
            "gemma4": "⟪<|tool_call>⟫call:",
        }.items()
    ),
    Damage(
        "thinking-not-closed",
        "kimi_k2",
        f"⟪<think>⟫Hm. {SECTION}",
        WRITTEN,
        reasoning="Hm. ",
        thinks="kimi_k2",
    ),
    Damage(
        "thinking-not-closed-and-text",
        "kimi_k2",
        f"⟪<think>⟫Hm. {SECTION}Done.",
        WRITTEN,
        content="Done.",
        reasoning="Hm. ",
        thinks="kimi_k2",
    ),
    Damage(
        "thinking-not-closed-and-a-cut-call",
        "kimi_k2",
        f"⟪<think>⟫Hm. {SECTION}\n⟪<|tool_calls_section_begin|>⟫{CUT}",
        (*WRITTEN, ("write", "{", "truncated")),
        reasoning="Hm. ",
        thinks="kimi_k2",
        finish=FinishReason.LENGTH,
    ),
    Damage(
        "thinking-cut-off",
        "kimi_k2",
        f"⟪<think>⟫Hm. {SECTION} or so",
        reasoning=f"Hm. {QUOTED} or so",
        thinks="kimi_k2",
        finish=FinishReason.LENGTH,
    ),
    Damage(
        "thinking-closed-later",
        "kimi_k2",
        f"⟪<think>⟫Hm. {SECTION} or {SECTION}.⟪</think>⟫No.",
        content="No.",
        reasoning=f"Hm. {QUOTED} or {QUOTED}.",
        thinks="kimi_k2",
    ),
    Damage(
        "thinking-not-closed-v31",
        "deepseek_v31",
        "⟪<think>⟫Hm.⟪<｜tool▁calls▁begin｜>⟫⟪<｜tool▁call▁begin｜>⟫ping⟪<｜tool▁sep｜>⟫{}"
        "⟪<｜tool▁call▁end｜>⟫⟪<｜tool▁calls▁end｜>⟫",
        (("ping", {}, "valid"),),
        reasoning="Hm.",
        thinks="deepseek_v31",
    ),
    Damage(
        "thinking-twice",
        "hermes",
        "⟪<think>⟫One.⟪</think>⟫Text.⟪<think>⟫Two.⟪</think>⟫More.",
        content="Text.More.",
        reasoning="One.Two.",
        thinks="qwen3",
    ),
    Damage(
        "thinking-marker-in-thinking",
        "hermes",
        "⟪<think>⟫One ⟪<think>⟫ two.⟪</think>⟫Text.⟪</think>⟫",
        content="Text.",
        reasoning="One <think> two.",
        thinks="qwen3",
    ),
    Damage(
        "members-of-any-name-minimax_m3",
        "minimax_m3",
        f'{M3}<tool_call>\n{M3}<invoke name="f">{M3}<map>{M3}<a>5{M3}</a>{M3}</map>'
        f"{M3}<zip>018956{M3}</zip>{M3}</invoke>\n{M3}</tool_call>",
        (("f", {"map": {"a": "5"}, "zip": 18956}, "valid"),),
        tools={
            "f": {
                "type": "object",
                "properties": {
                    "map": {"type": "object", "additionalProperties": STRING},
                    "zip": INTEGER,
                },
            }
        },
    ),
    Damage(
        "spelled-tag-in-an-item-minimax_m3",
        "minimax_m3",
        f'{M3}<tool_call>\n{M3}<invoke name="count">{M3}<tags>{M3}<item>]<]minimax[>[<b>'
        f"{M3}</item>{M3}</tags>{M3}</invoke>\n{M3}</tool_call>",
        (("count", {"tags": ["]<]minimax[>[<b>"]}, "valid"),),
    ),
    Damage(
        "name-twice",
        "hermes",
        named('{"name": "ping", "name": "city", "arguments": {}}'),
        (("ping", {}, "valid"),),
    ),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in WHOLE_ANSWERS])
def test_whole_answers(case):
    check(case)


BARE_CALLS = {
    "minicpm5": '<function name="ping"></function>',
    "qwen3_coder": "<function=ping>\n</function>",
    "seed_oss": "<function=ping></function>",
    "minimax_m2": '<invoke name="ping">\n</invoke>',
    "deepseek_v32": '<⟪｜DSML｜⟫invoke name="ping">\n</⟪｜DSML｜⟫invoke>',
    "gemma4": "call:ping{}",
    "llama4_json": '{"name": "ping", "parameters": {}}',
    "llama4_pythonic": "[ping()]",
}
"""Calls without a marker of their own."""


@pytest.mark.parametrize(
    "before",
    ["I call `ping`\n", "I call `ping`. ", "See ``a`b``. ", "A lone ` tick.\n", "```\n`a\n```\n"],
)
@pytest.mark.parametrize("parser", BARE_CALLS)
def test_a_call_behind_inline_code(parser, before):
    (folded, *_) = found = read(Damage("", parser, f"{before}{BARE_CALLS[parser]}"))
    assert all([call.name for call in one.calls] == ["ping"] for one in found)
    assert folded.content.rstrip() == before.rstrip()


@pytest.mark.parametrize("around", ["Write `CALL`.", "Write `see CALL`.", "Write `` a`CALL`` now."])
@pytest.mark.parametrize("parser", BARE_CALLS)
def test_a_call_in_inline_code_is_quoted(parser, around):
    text = around.replace("CALL", BARE_CALLS[parser].replace("\n", ""))
    check(Damage("", parser, text, content=text.replace("⟪", "").replace("⟫", "")))


BROKEN_TAGS = [
    Damage(
        "next-parameter-misspelt",
        "minimax_m2",
        '⟪<minimax:tool_call>⟫\n<invoke name="write">\n<parameter name="path">a</parameter>\n'
        '<paraeter name="text">b</parameter>\n</invoke>\n⟪</minimax:tool_call>⟫',
        (("write", {"path": 'a</parameter>\n<paraeter name="text">b'}, "malformed"),),
    ),
    Damage(
        "name-with-a-sign",
        "minimax_m2",
        minimax("b").replace('name="text"', 'name=="text"'),
        (("write", {'="text': "b"}, "malformed"),),
    ),
    Damage(
        "element-misspelt",
        "kimi_k3",
        '⟪<|open|>⟫tools⟪<|sep|>⟫⟪<|open|>⟫call tool="write" index="1"⟪<|sep|>⟫'
        '⟪<|open|>⟫arguent key="text" type="string"⟪<|sep|>⟫b⟪<|close|>⟫argument⟪<|sep|>⟫'
        "⟪<|close|>⟫call⟪<|sep|>⟫⟪<|close|>⟫tools⟪<|sep|>⟫",
        (("write", {}, "malformed"),),
        thinks="kimi_k3",
    ),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in BROKEN_TAGS])
def test_a_call_that_lacks_what_a_broken_tag_holds_is_not_valid(case):
    check(case)


ENDINGS = {
    "hermes": ("<tool_call>", "<tool_call> {", '<tool_call>{"na', "<tool_call>[{", "<tool_call>{x"),
    "longcat": ("<longcat_tool_call>\n{", '<longcat_tool_call>{ "x": 1'),
    "hunyuan_a13b": ("<tool_calls>[", "<tool_calls>[{", '<tool_calls>{"na'),
    "granite": ("<tool_call>[", '<|tool_call|>[{"'),
    "granite-20b-fc": ("<function_call> {", '<function_call>{"name'),
    "phi4_mini_json": ("functools", "functools[", "functools[{", 'functools[{"na'),
    "xlam": ("[", "[{", '[{"na', "```json\n[{", "<tool_call>[{"),
    "llama4_json": ("{", '{"na', '{"name": "ping'),
    "llama4_pythonic": ("[", "[ping", "[ ping ", "[city, ping"),
    "pythonic": ("[", "[ping"),
    "olmo3": ("<function_calls>", "<function_calls>ping"),
    "minicpm5": ("<function", '<function name="pong'),
}


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize(
    ("parser", "end"), [(parser, end) for parser, ends in ENDINGS.items() for end in ends]
)
def test_an_answer_that_ends_like_the_beginning_of_a_call_is_text(parser, end, finish):
    text = f"It ends with \n\n{end}"
    check(Damage("", parser, text, content=text, finish=finish))


@pytest.mark.parametrize(
    ("parser", "section"), [("qwen3_coder", "tool_call"), ("seed_oss", "seed:tool_call")]
)
def test_closing_tags_that_are_tokens(parser, section):
    """A vocabulary may have them as added tokens; no parameter is lost for that."""
    parameters = "".join(
        f"<parameter={key}>\n{value}\n⟪</parameter>⟫\n" for key, value in WRITTEN.items()
    )
    output = f"⟪<{section}>⟫\n<function=write>\n{parameters}⟪</function>⟫\n⟪</{section}>⟫"
    check(Damage("tokens", parser, output, (("write", WRITTEN, "valid"),)))


WRITTEN = {"path": "a", "text": "b"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("parser", "thinks", "piece"),
    [("openai", "openai_gptoss", " "), ("pythonic", None, "a"), ("hermes", "qwen3", " ")],
)
def test_a_long_beginning_costs_the_same_a_token(parser, thinks, piece):
    """The work is counted in characters that are looked at again: it may not grow with the size."""
    made = tokenizer(())
    vocabulary = Vocabulary.from_tokenizers(made)
    head = encode(made, ("[f(x=",)) if parser == "pythonic" else []
    (one,) = encode(made, (piece,))[:1]

    def seconds(size: int) -> float:
        best = 9.0
        for _ in range(3):
            reader = make_parser(vocabulary, tool_parser=parser, reasoning_parser=thinks)
            reader.feed(head)
            began = time.process_time()
            for _ in range(size):
                reader.feed((one,))
            best = min(best, time.process_time() - began)
        return best / size

    assert seconds(32_000) < 3 * seconds(4_000)


SKIPPED = "⟪<|open|>⟫response⟪<|sep|>⟫It rains.⟪<|close|>⟫response⟪<|sep|>⟫"


def test_an_answer_without_the_thinking_that_the_prompt_has_opened() -> None:
    made = tokenizer(("<|open|>", "<|close|>", "<|sep|>"))
    vocabulary = Vocabulary.from_tokenizers(made)
    ids = encode(made, pieces_of(SKIPPED))
    for size in range(1, 9):
        parser = make_parser(
            vocabulary, reasoning_parser="kimi_k3", starts_in=Phase.REASONING, tools=()
        )
        events = [event for step in every(ids, size) for event in parser.feed(step)]
        folded = fold([*events, *parser.flush(FinishReason.STOP)])
        assert (folded.reasoning, folded.content) == ("", "It rains.")


def test_magistral_without_tokens_for_its_thinking() -> None:
    check(Damage("", "mistral", "<think>\nHm.\n</think>\nHi.", (), "Hi.", "Hm.", thinks="mistral"))


DISTRUSTED = [
    ("a key behind the end of a call", "glm45", named("write") + "⟪<arg_key>⟫text⟪</arg_key>⟫"),
    ("arguments that never begin", "hermes", named('{"name": "write", ] "arguments": {}}')),
    ("a list that has only begun", "hermes", named('{"name": "count", "arguments": {"tags": [')),
    ("text between parameters", "qwen3_coder", qwen("a\n</parameter>\nx\n<parameter=path>\nb")),
]


@pytest.mark.parametrize(
    ("parser", "output"), [pytest.param(*case, id=name) for name, *case in DISTRUSTED]
)
def test_a_call_whose_markup_is_damaged(parser: str, output: str) -> None:
    for folded in read(Damage("", parser, output)):
        assert folded.calls[0].outcome == "malformed"


def test_the_end_of_a_call_comes_with_what_follows() -> None:
    made = tokenizer(("<tool_call>", "</tool_call>"))
    parser = make_parser(Vocabulary.from_tokenizers(made), tool_parser="hermes", tools=None)
    call = encode(made, pieces_of(named('{"name": "ping", "arguments": {}}')))
    assert not [event for event in parser.feed(call) if isinstance(event, ToolCallEnd)]
    end, text = parser.feed(encode(made, pieces_of("Hi.")))
    assert (end, text) == (ToolCallEnd(0, Outcome.VALID), ContentDelta("Hi."))
