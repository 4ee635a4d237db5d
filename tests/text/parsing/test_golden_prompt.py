"""Decided output comes out at once: text and arguments stream as they are written."""

from __future__ import annotations

from itertools import accumulate

import pytest

from eaglegate.text.events import ContentDelta, ReasoningDelta, ToolCallDelta
from tests.text.parsing.golden_corpus import Case, corpus
from tests.text.parsing.golden_reading import known, main_parser, output, parser_of

LONGEST = 32
"""Bytes of the longest plain-text marker, ``Here is my thought process:``, and some for framing."""
UNDECIDED = {"json_answer_is_content", "json_answer_with_name", "json_array_answer"}
"""JSON answers where a bare object may be a call: undecided up to the second key."""

FENCED = {"fenced", "fenced_before_words", "fenced_answer_cut", "ollama_16398"}
"""A code fence around a call: undecided up to what follows the fence."""

PLAIN = [
    case
    for case in corpus()
    if list(case.pieces) == [case.reasoning + case.content] and case.name not in FENCED
]
"""Cases of text alone, whatever it looks like."""
CALLING = [case for case in corpus() if "long_argument_5k" in case.name]


def emitted(events: list[object]) -> int:
    """Bytes of text in these events."""
    return sum(
        len(event.text.encode())
        for event in events
        if isinstance(event, ContentDelta | ReasoningDelta)
    )


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in PLAIN])
def test_no_more_text_is_held_back_than_a_marker(case: Case) -> None:
    parser, (ids, _, _) = parser_of(case, main_parser(case)), output(case)
    sizes = accumulate(len(known(case.format)[1].pieces[token_id]) for token_id in ids)
    limit = LONGEST * (2 if case.name in UNDECIDED else 1)
    out = 0
    for token_id, written in zip(ids, sizes, strict=True):
        out += emitted(parser.feed([token_id]))
        assert written - out <= limit, f"{case.id}: {written - out} bytes held back"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CALLING])
def test_arguments_stream(case: Case) -> None:
    """One token a step: nearly every token of a long argument brings its piece."""
    parser, (ids, _, _) = parser_of(case, main_parser(case)), output(case)
    pieces = [
        event.arguments
        for token_id in ids
        for event in parser.feed([token_id])
        if isinstance(event, ToolCallDelta)
    ]
    assert len(pieces) > 0.8 * len(ids)
    assert max(map(len, pieces)) < 100
