"""The events one parser makes of one answer, format by format where they differ."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from eaglegate.text.events import (
    ContentDelta,
    FinishReason,
    Outcome,
    ParserEvent,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import fold
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.parsing.registry import UnknownParser
from eaglegate.text.parsing.vocabulary import Vocabulary

DEMO = Path(__file__).parents[3] / "engine/demo/target/tokenizer.json"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizers(Tokenizer.from_file(str(DEMO)))


def build(vocabulary: Vocabulary, tool_parser=None, reasoning_parser=None, **options) -> Parser:
    numbers = count()
    options.setdefault("tools", [WEATHER])
    options.setdefault("new_id", lambda: f"call_{next(numbers)}")
    return make_parser(
        vocabulary, tool_parser=tool_parser, reasoning_parser=reasoning_parser, **options
    )


def run(parser: Parser, ids: list[int], finish=FinishReason.STOP) -> list[ParserEvent]:
    return [*parser.feed(ids), *parser.flush(finish)]


def test_reasoning_content_and_calls(vocabulary):
    text = (
        "<think>\nQuote <tool_call>{}</tool_call> é😀\n</think>\n\nLook: a < b\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Ö", "days":  2}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"x": 1.0}, "name": "nope"}\n</tool_call><|im_end|>'
    )
    parser = build(vocabulary, "hermes", "qwen3")
    assert run(parser, vocabulary.encode(text)) == [
        ReasoningDelta("Quote <tool_call>{}</tool_call> é😀"),
        ContentDelta("Look: a < b"),
        ToolCallStart(0, "call_0", "weather"),
        ToolCallDelta(0, '{"city": "Ö", "days":  2}'),
        ToolCallEnd(0, Outcome.VALID),
        ToolCallStart(1, "call_1", "nope"),
        ToolCallDelta(1, '{"x": 1.0}'),
        ToolCallEnd(1, Outcome.UNKNOWN_TOOL),
    ]
    assert parser.finish_reason(FinishReason.STOP) == "tool_calls"
    assert parser.reasoning_tokens > 5


def test_without_parsers_everything_is_content(vocabulary):
    ids = vocabulary.encode("  <think> <tool_call>{}<|im_end|>")
    assert run(build(vocabulary), ids) == [ContentDelta("  <think> <tool_call>{}")]


def test_only_the_first_call_when_not_parallel(vocabulary):
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    events = run(build(vocabulary, "hermes", parallel=False), vocabulary.encode(call * 2))
    assert [event.index for event in events] == [0, 0, 0]


def test_the_id_of_a_mistral_call_is_one_that_mistral_common_takes_back(vocabulary):
    text = '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}'
    (start, *_) = run(build(vocabulary, "mistral", new_id=None), vocabulary.encode(text))
    assert re.fullmatch("[a-zA-Z0-9]{9}", start.id)


def test_an_unknown_name_lists_the_names(vocabulary):
    with pytest.raises(UnknownParser, match="hermes, hunyuan, hunyuan_a13b"):
        build(vocabulary, "hermez")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function='</tool_call>",
        '<tool_call><function=">x</tool_call>',
        "<tool_call><function=>x</function></tool_call>",
        "<tool_call><function=\n</tool_call>",
        "<tool_call></function></parameter></tool_call>",
    ],
)
def test_a_broken_tag_is_no_call(vocabulary, text):
    assert fold(run(build(vocabulary, "qwen3_coder"), vocabulary.encode(text))).calls == []
