"""Shapes that the calls of public benchmarks have and the other tests lack, in every format."""

from __future__ import annotations

import json

import pytest

from tests.text.parsing.golden_corpus import written_case
from tests.text.parsing.golden_reading import readings

pytestmark = pytest.mark.thorough

STRING = {"type": "string"}
PLACE = {"type": "object", "properties": {"city": STRING, "date": STRING, "unit": STRING}}
GOES_OVER = {
    "qwen3_coder": "⟪<tool_call>⟫\n<function=place>\n<parameter=city>\nOslo\n</parameter>\n"
    "-<parameter=date>\nMay\n</parameter>\n</function>\n⟪</tool_call>⟫",
    "minimax_m2": '⟪<minimax:tool_call>⟫\n<invoke name="place">\n<parameter name="city">Oslo'
    '</parameter>]<parameter name="date">May</parameter>\n</invoke>\n⟪</minimax:tool_call>⟫',
    "minicpm5": '<function name="place"><param name="city">Oslo</param><paramx name="date">May'
    "</param></function>",
    "deepseek_v41": '<⟪｜DSML｜⟫ calls>\n<⟪｜DSML｜⟫ invoke name="place">\n<⟪｜DSML｜⟫ parameter '
    'name="city" string="true">Oslo</⟪｜DSML｜⟫ parameter>\n<⟪｜DSML｜⟫\n parameter name="date" '
    'string="true">May</⟪｜DSML｜⟫ parameter>\n</⟪｜DSML｜⟫ invoke>\n</⟪｜DSML｜⟫ calls>',
    "glm47": "⟪<tool_call>⟫place⟪<arg_key>⟫city⟪</arg_key>⟫⟪<arg_value>⟫Oslo⟪</arg_value>⟫"
    "⟪<arg_key>⟫date[⟪</arg_key>⟫⟪<arg_value>⟫May⟪</arg_value>⟫⟪</tool_call>⟫",
    "solar_open2": "⟪<|tool_call:start|>⟫place\n⟪<|tool_arg:start|>⟫city⟪<|tool_arg:value|>⟫Oslo"
    "⟪<|tool_arg:end|>⟫date⟪<|tool_arg:value|>⟫May⟪<|tool_arg:end|>⟫⟪<|tool_call:end|>⟫",
    "kimi_k3": '⟪<|open|>⟫tools⟪<|sep|>⟫⟪<|open|>⟫call tool="place" index="1"⟪<|sep|>⟫⟪<|open|>⟫'
    'argument key="city" type="string"⟪<|sep|>⟫Oslo⟪<|close|>⟫argument⟪<|sep|>⟫}⟪<|open|>⟫argument '
    'key="date" type="string"⟪<|sep|>⟫May⟪<|close|>⟫argument⟪<|sep|>⟫⟪<|close|>⟫call⟪<|sep|>⟫'
    "⟪<|close|>⟫tools⟪<|sep|>⟫",
    "k2_horizon": "⟪<ifm|tool_calls>⟫\n⟪<ifm|tool_call>⟫place\n⟪<ifm|arg_key>⟫city⟪</ifm|arg_key>⟫"
    "⟪<ifm|arg_type>⟫string⟪<ifm|arg_value>⟫⟪</ifm|arg_type>⟫⟪<ifm|arg_value>⟫Oslo"
    "⟪</ifm|arg_value>⟫⟪</ifm|tool_call>⟫\n⟪</ifm|tool_calls>⟫",
    "lfm2": '⟪<|tool_call_start|>⟫[place(city="Oslo", <date="May")]⟪<|tool_call_end|>⟫',
    "pythonic": '[place(city="Oslo"_, date="May", unit="C")]',
    "olmo3": '<function_calls>place(city="Oslo",= date="May")</function_calls>',
}
"""A piece too many between two parameters: the first value would take in the second."""


@pytest.mark.parametrize("parser", GOES_OVER)
def test_a_value_that_holds_the_next_parameter_is_not_valid(parser: str) -> None:
    for answer in readings(written_case(parser, GOES_OVER[parser], tools={"place": PLACE})):
        assert [str(call.outcome) for call in answer.calls] == ["malformed"]


GLM = "⟪<tool_call>⟫place⟪<arg_key>⟫city⟪</arg_key>⟫⟪<arg_value>⟫VALUE⟪</arg_value>⟫⟪</tool_call>⟫"
IQUEST = (
    "⟪<iquest_tool_call>⟫place\n<arg_key>city</arg_key>\n<arg_value>VALUE</arg_value>\n"
    "⟪</iquest_tool_call>⟫"
)
MISTRAL = '⟪[TOOL_CALLS]⟫place⟪[ARGS]⟫{"city": "VALUE"}'
QUOTING = [
    (
        "qwen3_coder",
        "⟪<tool_call>⟫\n<function=place>\n<parameter=city>\nVALUE\n</parameter>\n</function>\n"
        "⟪</tool_call>⟫",
        "See <parameter=a>1</parameter> and <parameter=b>2</parameter>.",
    ),
    ("glm47", GLM, "⟪<arg_value>⟫".join(["See a ", "1⟪</arg_value>⟫ and ", "2⟪</arg_value>⟫."])),
    ("glm47", GLM, "Keys are ⟪<arg_key>⟫k⟪</arg_key>⟫ here."),
    ("hy_v4", f"⟪<tool_calls>⟫{GLM}⟪</tool_calls>⟫", "A ⟪<arg_key>⟫k⟪</arg_key>⟫ ⟪<tool_call>⟫."),
    ("iquest_q1", IQUEST, "Keys are <arg_key>k</arg_key> here."),
    ("mistral", MISTRAL, "Use ⟪[TOOL_CALLS]⟫now⟪[ARGS]⟫{} here"),
    ("mistral", MISTRAL, "Use ⟪[TOOL_CALLS]⟫now⟪[ARGS]⟫."),
    ("pythonic", '[place(city="VALUE", unit="C")]', 'the "date" of "unit", it said'),
]


def test_quotes_in_pairs_and_a_parenthesis_end_a_value() -> None:
    """LFM2.5's template writes quotes as they are."""
    output = "⟪<|tool_call_start|>⟫[place(city='a IN ('b', 'c')')]⟪<|tool_call_end|>⟫"
    for answer in readings(written_case("lfm2", output, tools={"place": PLACE})):
        assert [str(call.outcome) for call in answer.calls] == ["valid"]
        assert json.loads(answer.calls[0].arguments) == {"city": "a IN ('b', 'c')"}


@pytest.mark.parametrize(("parser", "template", "value"), QUOTING)
def test_a_value_that_quotes_its_format_is_valid(parser: str, template: str, value: str) -> None:
    output = template.replace("VALUE", value)
    for answer in readings(written_case(parser, output, tools={"place": PLACE})):
        assert [str(call.outcome) for call in answer.calls] == ["valid"]
        said = json.loads(answer.calls[0].arguments)["city"]
        assert said == value.replace("⟪", "").replace("⟫", "")


def test_a_closing_tag_behind_a_section_is_no_content() -> None:
    output = f"{SIDE_BY_SIDE['qwen3_coder']}\n</function>\nDone."
    for answer in readings(written_case("qwen3_coder", output)):
        assert ([call.name for call in answer.calls], answer.content) == (["ping"], "Done.")


ID_TOOL = {"read": {"type": "object", "properties": {"id": STRING, "path": STRING}}}
BEHIND = '⟪[TOOL_CALLS]⟫[{"name": "read", "arguments": {"path": "a"}, "id": "%s"}]'


@pytest.mark.parametrize(("id", "outcome"), [("abc123XYZ", "valid"), ("42", "malformed")])
def test_an_id_behind_the_arguments_of_a_tool_that_has_one(id: str, outcome: str) -> None:
    """Mistral's templates write an id of nine letters and digits; others may be a lost argument."""
    for answer in readings(written_case("mistral", BEHIND % id, tools=ID_TOOL)):
        assert [(call.arguments, call.outcome) for call in answer.calls] == [
            ('{"path": "a"}', outcome)
        ]


LISTED = {"type": "object", "properties": {"items": {"type": "array"}, "city": STRING}}
BROKEN = {
    "gemma4-item": '⟪<|tool_call>⟫call:place{items:[⟪<|"|>⟫a⟪<|"|>⟫:],city:⟪<|"|>⟫Oslo⟪<|"|>⟫}'
    "⟪<tool_call|>⟫",
    "lfm2-bracket": '⟪<|tool_call_start|>⟫[place(items=["a"(], city=["Oslo"])]⟪<|tool_call_end|>⟫',
    "minimax_m3-item": "⟪M⟫<tool_call>\n⟪M⟫<invoke name='place'>\n⟪M⟫<items>⟪M⟫<item>a"
    "⟪M⟫</item>b⟪M⟫<item>c⟪M⟫</item>⟪M⟫</items>\n⟪M⟫</invoke>\n⟪M⟫</tool_call>",
    "minimax_m3-closing": "⟪M⟫<tool_call>\n⟪M⟫<invoke name='place'>\n⟪M⟫<city>Oslo"
    "⟪M⟫</city></item>\n⟪M⟫</invoke>\n⟪M⟫<invoke name='place'>\n⟪M⟫<city>Rome⟪M⟫</city>\n"
    "⟪M⟫</invoke>\n⟪M⟫</tool_call>",
    "minimax_m3-section": "⟪M⟫<tool_call>\n⟪M⟫<invoke name='place'>\n⟪M⟫<city>Oslo⟪M⟫</city>\n"
    "⟪M⟫</tool_call><items>a⟪M⟫</items>\n⟪M⟫</invoke>\n⟪M⟫</tool_call>",
    "minimax_m3-call": "⟪M⟫<tool_call>\n⟪M⟫<invoke name='place'>\n⟪M⟫<city>Oslo⟪M⟫</city>\n"
    "⟪M⟫</invoke><items>a⟪M⟫</items>\n⟪M⟫</invoke>\n⟪M⟫</tool_call>",
    "mistral-brace": '⟪[TOOL_CALLS]⟫place⟪[ARGS]⟫{"city": "Oslo", }"items": ["a"]}',
    "mistral-member": '⟪[TOOL_CALLS]⟫place⟪[ARGS]⟫{"city": "Oslo"}, "items": ["a"]}',
    "llama4_pythonic-quote": '[place(city="Oslo")", place(items="x")]',
    "minimax_m3-dot": "⟪M⟫<tool_call>\n⟪M⟫<invoke name='place'>\n⟪M⟫<city>Oslo⟪M⟫.</city>\n"
    "⟪M⟫</invoke>\n⟪M⟫<invoke name='place'>\n⟪M⟫<city>Rome⟪M⟫</city>\n⟪M⟫</invoke>\n"
    "⟪M⟫</tool_call>",
    "muse_glimmer-comma": "⟪<|start|>⟫assistant to=place⟪<|message|>⟫<atem:function_calls>\n"
    '<atem:invoke name="place">\n<atem:parameter name="items">["a" "b"]</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>⟪<|eom|>⟫",
    "olmo3-tag": '<function_calls>place(city="Oslo", items</function_calls>=["a"], city="b")'
    "</function_calls>",
    "solar_open2-token": "⟪<|tool_call:start|>⟫place\n⟪<|tool_arg:start|>⟫city"
    "⟪<|tool_arg:value|>⟫Oslo⟪<|tool_arg:end|>⟫⟪<|tool_arg:start|>⟫itemsa⟪<|tool_arg:end|>⟫⟪<|tool_call:end|>⟫",
    "deepseek_v4-section": '<⟪｜DSML｜⟫tool_calls>\n<⟪｜DSML｜⟫invoke name="place">\n'
    '<⟪｜DSML｜⟫parameter name="city" string="true">Oslo</⟪｜DSML｜⟫parameter>\n'
    '</⟪｜DSML｜⟫tool_calls><⟪｜DSML｜⟫parameter name="items" string="false">["a"]'
    "</⟪｜DSML｜⟫parameter>\n</⟪｜DSML｜⟫invoke>\n</⟪｜DSML｜⟫tool_calls>",
}
"""A piece too many or too few, by the format and what is wrong."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_call_is_never_valid(name: str) -> None:
    output = BROKEN[name].replace("⟪M⟫", "⟪]<]minimax[>[⟫")
    case = written_case(name.partition("-")[0], output, tools={"place": LISTED})
    for answer in readings(case):
        assert answer.calls
        assert "valid" not in [call.outcome for call in answer.calls]


SIDE_BY_SIDE = {
    "qwen3_coder": "⟪<tool_call>⟫\n<function=ping>\n</function>\n⟪</tool_call>⟫",
    "minimax_m2": '⟪<minimax:tool_call>⟫\n<invoke name="ping">\n</invoke>\n⟪</minimax:tool_call>⟫',
    "mistral": "⟪[TOOL_CALLS]⟫ping⟪[ARGS]⟫{}",
}


@pytest.mark.parametrize("parser", SIDE_BY_SIDE)
def test_no_marker_between_two_sections_is_lost(parser: str) -> None:
    for answer in readings(written_case(parser, SIDE_BY_SIDE[parser] * 2)):
        assert [(call.name, call.outcome) for call in answer.calls] == [("ping", "valid")] * 2
        assert answer.content == ""
