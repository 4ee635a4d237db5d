"""Properties of every registered format, whatever the model writes and however it is cut.

A new format is tested by being in the registry. Outputs are made of its own markers, as tokens and
as ordinary text, mixed with the pieces that calls are made of.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from eaglegate.text.events import FinishReason, ParserEvent, Phase
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.parsing.registry import (
    reasoning_format,
    routine_names,
    thinking_names,
    tool_format,
)
from eaglegate.text.parsing.vocabulary import Vocabulary
from tests.text.parsing.golden_reading import fold, joined

DEMO = Path(__file__).parents[3] / "engine/demo/target/tokenizer.json"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "mode": {"type": "integer"},
                    "tags": {"type": "array"},
                    "note": {"type": ["string", "null"]},
                },
            },
        },
    }
]
WORDS = [
    *("write", "functions.write:0", "path", "mode", "tags", "null", "12", "1e5", "True", "[1,2]"),
    *('{"a":1}', '{"name":"write","arguments":{"path":"x"}}', '"name"', '"arguments"'),
    *('"parameters"', 'write(path="x",mode=1)', "é", "😀👍", "<tool", "<|", "a<b", '\\"', "\\\\"),
    *("'", '"', "{", "}", "[", "]", "(", ")", "=", ",", ":", ";", ">", "<", "/", "json", "```"),
    *("<function=write>", "</function>", "<parameter=path>", "<parameter=mode>", "</parameter>"),
    *('<invoke name="write">', "</invoke>", '<parameter name="path">', '"path">', "call_1"),
    *("commentary", " to=functions.write", "analysis", "final", "assistant", "</think>"),
    *("<tool_call>", "</tool_call>", " ", "\t", "\n", "\n\n", "\n```json\n", "\n```"),
]
NAMES = [*routine_names(), None]
FINISHES = [FinishReason.STOP, FinishReason.LENGTH]


def markers(tool_parser: str | None, reasoning_parser: str | None) -> list[str]:
    tools = tool_format(tool_parser) if tool_parser else None
    found = [*(tools.markers if tools else ()), *reasoning_format(reasoning_parser).markers]
    return [*found, *([tools.fragment] if tools and tools.fragment else [])]


@cache
def vocabulary(tool_parser: str | None, reasoning_parser: str | None, tokens: bool) -> Vocabulary:
    """The demo's tokenizer, with the markers of the formats as tokens or with none at all."""
    text = DEMO.read_text()
    for marker in ("think", "tool_call"):
        text = text.replace(f"<{marker}>", f"<{marker}-not>").replace(
            f"</{marker}>", f"</{marker}-not>"
        )
    tokenizer = Tokenizer.from_str(text)
    if tokens:
        found = [
            m
            for m in markers(tool_parser, reasoning_parser)
            if "my " not in m and ("DSML｜" not in m or m == "｜DSML｜")
        ]
        tokenizer.add_special_tokens([AddedToken(text) for text in found])
    return Vocabulary.from_tokenizers(tokenizer)


def ordinary(vocabulary: Vocabulary, text: str) -> list[int]:
    """``text`` in ordinary tokens, whatever markers it spells."""
    return [token_id for char in text for token_id in vocabulary.encode(char)]


@st.composite
def outputs(draw, tool_parser: str | None, reasoning_parser: str | None, tokens: bool):
    known = vocabulary(tool_parser, reasoning_parser, tokens)
    special = st.sampled_from(markers(tool_parser, reasoning_parser) or ["<eos>"])
    piece = st.one_of(
        special.map(known.encode),
        special.map(known.encode),
        special.map(lambda text: ordinary(known, text)),
        st.sampled_from(WORDS).map(known.encode),
        st.sampled_from(WORDS).map(known.encode),
        st.text(max_size=6).map(known.encode),
        st.sampled_from(sorted(known.added)).map(lambda token_id: [token_id]),
        st.integers(4, 259).map(lambda token_id: [token_id]),
    )
    return [token_id for ids in draw(st.lists(piece, max_size=24)) for token_id in ids]


def build(known: Vocabulary, names: tuple[str | None, str | None], **options) -> Parser:
    numbers = count()
    tool_parser, reasoning_parser = names
    return make_parser(
        known,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        tools=TOOLS,
        new_id=lambda: f"call_{next(numbers)}",
        **options,
    )


def read(parser: Parser, ids: list[int], cuts: random.Random | int, finish: FinishReason):
    """The events, and what the parser says at the end."""
    events, start = list[ParserEvent](), 0
    while start < len(ids):
        size = cuts if isinstance(cuts, int) else cuts.randint(1, 16)
        events += parser.feed(ids[start : start + size])
        start += size
    events += parser.flush(finish)
    return events, (parser.finish_reason(finish), parser.reasoning_tokens, parser.stopped)


def check_cuts(known, names, ids, seed, finish, **options) -> None:
    """All cuttings give the same events but for where the text is cut, and keep their order."""
    results = []
    for cuts in (1, len(ids) + 1, 2, random.Random(seed), random.Random(seed + 1)):
        events, said = read(build(known, names, **options), ids, cuts, finish)
        fold(events, said[0])
        results.append((joined(events, written_ids=True), said))
    assert all(result == results[0] for result in results)


MANY = settings(max_examples=15, suppress_health_check=list(HealthCheck), print_blob=True)


def check_any_output(tool_parser: str | None, tokens: bool, data: st.DataObject) -> None:
    names = tool_parser, data.draw(st.sampled_from([*thinking_names(), None]))
    ids = data.draw(outputs(*names, tokens))
    check_cuts(
        vocabulary(*names, tokens),
        names,
        ids,
        data.draw(st.integers(0, 999)),
        finish=data.draw(st.sampled_from(FINISHES)),
        starts_in=data.draw(st.sampled_from([Phase.CONTENT, Phase.REASONING])),
        stop=data.draw(st.sampled_from([(), (), ("path", "x\n"), ("</tool_call>",)])),
        parallel=data.draw(st.booleans()),
    )


@given(data=st.data())
@settings(MANY, max_examples=100)
def test_the_cutting_changes_nothing(data):
    """Of a format at a time; each one by itself is tried thoroughly."""
    check_any_output(data.draw(st.sampled_from(NAMES)), data.draw(st.booleans()), data)


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("tool_parser", NAMES)
@given(data=st.data())
@MANY
def test_the_cutting_changes_nothing_in_a_format(tool_parser, tokens, data):
    check_any_output(tool_parser, tokens, data)


PLAIN = st.lists(
    st.sampled_from(
        ["a < b ", "<", "<tool", "<|", "<|tool_", "[x", "word ", "é", "😀", "(", '"', "</"]
    ),
    min_size=1,
)


@pytest.mark.thorough
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("tool_parser", NAMES)
@given(pieces=PLAIN)
@MANY
@example(pieces=["a < b ", "<tool", "<|"])
def test_text_comes_out_promptly_and_whole(tool_parser, tokens, pieces):
    """The parser holds back no more than a marker's length, and lone beginnings of markers come
    out."""
    known = vocabulary(tool_parser, None, tokens)
    parser = build(known, (tool_parser, None))
    longest = max(map(len, markers(tool_parser, None)), default=0)
    fed = out = "So: "
    parser.feed(ordinary(known, fed))
    for piece in pieces:
        fed += piece
        out += "".join(event.text for event in parser.feed(ordinary(known, piece)))
        assert len(fed) - len(out) <= longest
    out += "".join(event.text for event in parser.flush(FinishReason.STOP))
    assert out == fed
