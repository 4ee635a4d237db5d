"""vLLM's own parsers, driven for one answer, beside the gateway's."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from eaglegate.engine.vllm_backend.parser_fallback import VllmParsers
from eaglegate.text.events import FinishReason
from eaglegate.text.parsing.answer import (
    make_fallback_parser,
    make_parser,
)
from eaglegate.text.parsing.fold import fold
from eaglegate.text.parsing.vocabulary import Vocabulary

TARGET = Path(__file__).parents[3] / "engine/demo/target"
ANSWER = (
    '<think>\nHm.\n</think>\n\nOk.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n'
    "</tool_call><|im_end|>"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TARGET)


@pytest.mark.parametrize("size", [1, 4])
def test_both_read_the_same(tokenizer, size):
    vocabulary = Vocabulary.from_directory(TARGET)
    ids = vocabulary.encode(ANSWER)
    foreign = VllmParsers(tokenizer, "hermes", "qwen3").make(TOOLS, vocabulary.encode("hi"))
    answers = []
    for parser in (
        make_fallback_parser(vocabulary, foreign, tools=TOOLS),
        make_parser(vocabulary, tool_parser="hermes", reasoning_parser="qwen3", tools=TOOLS),
    ):
        events = [
            event for at in range(0, len(ids), size) for event in parser.feed(ids[at : at + size])
        ]
        answer = fold([*events, *parser.flush(FinishReason.STOP)])
        calls = [(call.name, call.arguments, call.outcome) for call in answer.calls]
        answers.append((answer.reasoning.strip(), answer.content.strip(), calls))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("names", [("no_such", None), (None, "no_such"), ("hf", "hf")])
def test_parsers_that_vllm_lacks_are_refused(tokenizer, names):
    """``hf`` reads a template of the checkpoint, and this one has none."""
    with pytest.raises(ValueError, match="vLLM has no parser"):
        VllmParsers(tokenizer, *names)
