"""Answers that a foreign parser reads: what the gateway adds to its events."""

from __future__ import annotations

import ast
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from eaglegate.server.backends.plan import refuse_unknown_parsers
from eaglegate.server.errors import ConfigError
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.settings import Settings
from eaglegate.text.events import (
    ContentDelta,
    FinishReason,
    Outcome,
    ParserEvent,
    Phase,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from eaglegate.text.parsing.answer import make_fallback_parser
from eaglegate.text.parsing.fold import fold
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.parsing.registry import REASONING_PARSERS, TOOL_PARSERS
from eaglegate.text.parsing.vocabulary import Vocabulary

TARGET = Path(__file__).parents[3] / "engine/demo/target"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]


class Words:
    """A format of words: ``think X``, ``call NAME JSON``; all else is content."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []
        self._text = ""
        self._num = 0

    def feed(self, text: str, token_ids: Sequence[int], finished: bool) -> list[ParserEvent]:
        self.seen.append((text, list(token_ids)))
        if "fail" in text:
            raise RuntimeError("a bug")
        self._text += text
        *lines, self._text = self._text.split("\n")
        lines += [self._text] if finished else []
        return [event for line in lines for event in self._read(line)]

    def _read(self, line: str) -> list[ParserEvent]:
        kind, _, rest = line.partition(" ")
        if kind == "think":
            return [ReasoningDelta(rest)]
        if kind != "call":
            return [ContentDelta(line)] if line else []
        self._num += 1
        name, _, arguments = rest.partition(" ")
        start = ToolCallStart(self._num - 1, "", name)
        return [start, *([ToolCallDelta(self._num - 1, arguments)] if arguments else [])]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_directory(TARGET)


def read(
    vocabulary: Vocabulary, text: str, finish=FinishReason.STOP, size=1, **options
) -> tuple[list[ParserEvent], Parser, Words]:
    words = Words()
    options.setdefault("tools", TOOLS)
    parser = make_fallback_parser(vocabulary, words, **options)
    ids = vocabulary.encode(text)
    steps = [ids[at : at + size] for at in range(0, len(ids), size)]
    events = [event for step in steps for event in parser.feed(step)]
    return events + parser.flush(finish), parser, words


ANSWER = 'think so\nWell.\ncall f {"a": 1}\ncall g {}\ncall f [\n<|im_end|>'


@pytest.mark.parametrize("size", [1, 3, 100])
def test_calls_end_with_an_outcome(vocabulary, size):
    events, parser, _ = read(vocabulary, ANSWER, size=size)
    answer = fold(events)
    assert (answer.reasoning, answer.content) == ("so", "Well.")
    assert [(call.name, call.arguments, call.outcome) for call in answer.calls] == [
        ("f", '{"a": 1}', Outcome.VALID),
        ("g", "{}", Outcome.UNKNOWN_TOOL),
        ("f", "[", Outcome.TRUNCATED),
    ]
    assert all(call.id.startswith("call_") for call in answer.calls)
    assert parser.finish_reason(FinishReason.STOP) == "tool_calls"


def test_every_token_comes_once_and_the_last_special_one_not(vocabulary):
    _, _, words = read(vocabulary, "Well é 😀.\n<|im_end|>")
    assert "".join(text for text, _ in words.seen) == "Well é 😀.\n"
    assert [i for _, ids in words.seen for i in ids] == vocabulary.encode("Well é 😀.\n")


def test_an_answer_that_is_cut_off_truncates_its_call(vocabulary):
    events, _, _ = read(vocabulary, 'call f {"a"\n', FinishReason.LENGTH)
    assert events[-1] == ToolCallEnd(0, Outcome.TRUNCATED)


def test_one_call_without_parallel_calls(vocabulary):
    events, _, _ = read(vocabulary, ANSWER, parallel=False)
    assert [call.name for call in fold(events).calls] == ["f"]


def test_a_stop_string_ends_the_answer(vocabulary):
    events, parser, _ = read(vocabulary, "Well. STOP more", stop=("STOP",))
    assert (fold(events).content, parser.stopped) == ("Well. ", "STOP")


def test_when_the_parser_fails_the_rest_is_content(vocabulary, caplog):
    with caplog.at_level(logging.WARNING):
        events, _, _ = read(vocabulary, "Well.\nfail now", size=100)
    assert "fail" in fold(events).content
    assert "RuntimeError" in caplog.text
    assert "now" not in caplog.text


def test_the_factory_gives_it_the_prompt(vocabulary):
    given: list[Sequence[int]] = []

    class Fallback:
        def make(self, tools, prompt):
            given.append(prompt)
            return Words()

    factory = ParserFactory(vocabulary, "unknown", "unknown", fallback=Fallback())
    assert factory.read([1, 2]).starts_in is Phase.CONTENT
    assert factory.describe()[0] == ("tool_calls", "unknown", "vllm")
    assert factory.reasoning.starts == ()


@pytest.mark.parametrize(
    ("flag", "no_vllm", "said"),
    [
        (False, "", "--vllm-parser-fallback reads such a format"),
        (True, "there is none", "--vllm-parser-fallback cannot help: there is none"),
        (False, "there is none", "use one of"),
    ],
)
def test_an_unknown_name_is_refused_with_what_to_do(flag, no_vllm, said):
    settings = Settings(tool_call_parser="unknown", vllm_parser_fallback=flag)
    with pytest.raises(ConfigError, match="unknown tool call parser 'unknown'") as refused:
        refuse_unknown_parsers(settings, None, no_vllm)
    assert said in str(refused.value)


def test_with_the_flag_an_unknown_name_is_left_to_vllm():
    refuse_unknown_parsers(Settings(tool_call_parser="hf", vllm_parser_fallback=True), None)


@pytest.mark.parametrize(
    ("package", "ours"),
    [("tool_parsers", TOOL_PARSERS), ("reasoning", REASONING_PARSERS)],
)
def test_every_name_of_the_installed_vllm_has_a_parser_here(package, ours):
    """``hf`` and ``beam``, which read a grammar from the checkpoint, are the exceptions."""
    vllm = find_spec("vllm")
    if vllm is None or vllm.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(vllm.origin).with_name(package) / "__init__.py"
    registered = {
        key.value
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant)
    }
    assert len(registered) > 30
    assert registered - set(ours) <= {"hf", "beam"}
