"""Damage and types by table: what the golden files cannot say, or would say once per format."""

from __future__ import annotations

import time
from typing import Any

import pytest

from eaglegate.text.events import ContentDelta, FinishReason, Outcome, Repair, ToolCallEnd
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import Folded, fold
from eaglegate.text.parsing.vocabulary import Vocabulary
from tests.text.parsing.golden_corpus import pieces_of, usual_tools, written_case
from tests.text.parsing.golden_reading import check_steps, readings
from tests.text.parsing.golden_tokenizer import encode, tokenizer


def qwen(value: str, name: str = "text", tool: str = "write", close: str = "</parameter>") -> str:
    return (
        f"⟪<tool_call>⟫\n<function={tool}>\n<parameter={name}>\n{value}\n{close}\n"
        "</function>\n⟪</tool_call>⟫"
    )


def named(body: str) -> str:
    return f"⟪<tool_call>⟫{body}⟪</tool_call>⟫"


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


def test_events_of_repaired_calls_keep_the_original_text():
    end, folded = _ended('{"name": "city", "arguments": {"city": "P",}}')
    assert folded.calls[0].arguments == '{"city": "P"}'
    assert (end.outcome, end.repairs) == ("valid", (Repair.TRAILING_COMMA,))
    assert end.written == '{"city": "P",}'


def _ended(body: str, **options: Any) -> tuple[ToolCallEnd, Folded]:
    made = tokenizer(("<tool_call>", "</tool_call>"))
    parser = make_parser(
        Vocabulary.from_tokenizers(made),
        tool_parser="hermes",
        tools=[{"name": name, "parameters": schema} for name, schema in usual_tools().items()],
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
    ({"enum": ["on", 1]}, " on\n", "on"),
    ({"$ref": "#/$defs/on"}, "\n on", "on"),
    ({"type": "string", "maxLength": 2}, " on ", "on"),
    ({"type": "string"}, " on ", " on "),
]


@pytest.mark.parametrize(("schema", "text", "value"), PARAMETER_TYPES)
def test_types_that_clients_write(schema, text, value):
    defs = {"a/b": {"type": "integer"}, "c d": {"type": "integer"}, "on": {"const": "on"}}
    tool = {"type": "object", "$defs": defs, "properties": {"v": schema}}
    call = ("t", {"v": value}, "valid")
    check_steps(written_case("qwen3_coder", qwen(text, "v", "t"), (call,), tools={"t": tool}))


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
    check_steps(written_case("qwen3_coder", qwen("3.5", "v", "t"), call, tools={"t": root}))


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
    (folded, *_) = found = readings(written_case(parser, f"{before}{BARE_CALLS[parser]}"))
    assert all([call.name for call in one.calls] == ["ping"] for one in found)
    assert folded.content.rstrip() == before.rstrip()


@pytest.mark.parametrize("around", ["Write `CALL`.", "Write `see CALL`.", "Write `` a`CALL`` now."])
@pytest.mark.parametrize("parser", BARE_CALLS)
def test_a_call_in_inline_code_is_quoted(parser, around):
    text = around.replace("CALL", BARE_CALLS[parser].replace("\n", ""))
    check_steps(written_case(parser, text, content=text.replace("⟪", "").replace("⟫", "")))


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
    check_steps(written_case(parser, text, content=text, finish=finish))


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
    for folded in readings(written_case(parser, output)):
        assert folded.calls[0].outcome == "malformed"


def test_the_end_of_a_call_comes_with_what_follows() -> None:
    made = tokenizer(("<tool_call>", "</tool_call>"))
    parser = make_parser(Vocabulary.from_tokenizers(made), tool_parser="hermes", tools=None)
    call = encode(made, pieces_of(named('{"name": "ping", "arguments": {}}')))
    assert not [event for event in parser.feed(call) if isinstance(event, ToolCallEnd)]
    end, text = parser.feed(encode(made, pieces_of("Hi.")))
    assert (end, text) == (ToolCallEnd(0, Outcome.VALID), ContentDelta("Hi."))
