"""Calls in every format whose values quote the format's own markers, cut at random and read back.

An answer is written with a placeholder where a value quotes something. What is quoted goes in as
ordinary tokens that spell it, or as the token itself.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from eaglegate.text.events import FinishReason, Outcome
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import Folded, fold
from eaglegate.text.parsing.formats.harmony import ENDS
from eaglegate.text.parsing.registry import reasoning_format, tool_format
from eaglegate.text.parsing.vocabulary import Vocabulary
from tests.text.parsing.golden_corpus import filler, formats
from tests.text.parsing.golden_reading import known
from tests.text.parsing.round_trip_writers import WRITTEN

pytestmark = pytest.mark.thorough

QUOTED = "QuotedHere"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Write a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "mode": {"type": "integer"},
                    "tags": {"type": "array"},
                },
            },
        },
    }
]
Call = dict[str, Any]


def _encode(vocabulary: Vocabulary, text: str, quoted: str, as_token: bool) -> list[int]:
    """``text`` with ``quoted`` in every placeholder."""
    if as_token:
        inner = [vocabulary.ids[quoted]]
    else:
        inner = [token for char in quoted for token in vocabulary.encode(char)]
    first, *rest = text.split(QUOTED)
    return vocabulary.encode(first) + [
        token for part in rest for token in (*inner, *vocabulary.encode(part))
    ]


def _quotations(vocabulary: Vocabulary, parsers: tuple[str, str | None]) -> list[tuple[str, bool]]:
    """The markers of the format, each as text and, where it is one, as a token."""
    tools, reasoning = tool_format(parsers[0]), reasoning_format(parsers[1])
    found = dict.fromkeys((*tools.markers, *reasoning.markers))
    both = [(marker, as_token) for marker in found for as_token in (False, True)]
    known = vocabulary.ids.keys() - set(ENDS)
    return [(marker, as_token) for marker, as_token in both if not as_token or marker in known]


def _read(
    vocabulary: Vocabulary, parsers: tuple[str, str | None], ids: list[int], dice: random.Random
) -> Folded:
    parser = make_parser(
        vocabulary, tool_parser=parsers[0], reasoning_parser=parsers[1], tools=TOOLS
    )
    events, at = [], 0
    while at < len(ids):
        size = dice.randint(1, 8)
        events += parser.feed(ids[at : at + size])
        at += size
    return fold([*events, *parser.flush(FinishReason.STOP)])


def _check(answer: Folded, content: str, calls: Sequence[Call], quoted: str = "") -> None:
    assert answer.content.strip() == content, quoted
    assert [json.loads(call.arguments) for call in answer.calls] == list(calls), quoted
    allowed = {Outcome.VALID, Outcome.MALFORMED} if _OWN_TAG.fullmatch(quoted) else {Outcome.VALID}
    assert {call.outcome for call in answer.calls} <= allowed, quoted


_OWN_TAG = re.compile(
    r"</(\w+:)?(function|invoke|param|parameter)>|</?(ifm\|)?arg_(value|type)(:\w+)?>"
    r"|<\|tool_arg:(value|end)\|>|<\|sep\|>|<\|\"\|>|<escape>|\]<\]minimax\[>\["
)
"""Tags that end a value. One that stands at the end of the value, or is all of it, may be left
over."""


CALLS = [
    {"path": "a é.py", "content": f"before {QUOTED} behind", "mode": 420, "tags": ["x", QUOTED]},
    {"path": f"in {QUOTED} b", "content": 'x = "\\\\"\n\n  # 你好 😀 {1: [2]}\n'},
]


@pytest.mark.parametrize("name", WRITTEN)
def test_values_that_quote_the_format(name: str) -> None:
    form, written = formats()[name], WRITTEN[name]
    vocabulary, dice = known(form)[1], random.Random(name)
    parsers = form.tool_parsers[0], form.reasoning_parser
    calls = [("write_file", call) for call in CALLS]
    for content in ("", "I write it.") if written.line is not None else ("",):
        for quoted, as_token in _quotations(vocabulary, parsers):
            ids = _encode(vocabulary, written.write(content, calls), quoted, as_token)
            said = json.loads(json.dumps(CALLS).replace(QUOTED, json.dumps(quoted)[1:-1]))
            answer = _read(vocabulary, parsers, ids, dice)
            _check(answer, content, said, quoted)
    long = {"path": "a", "content": filler(64_000).rstrip("\n")}
    ids = vocabulary.encode(written.write("", [("write_file", long)]))
    _check(_read(vocabulary, parsers, ids, dice), "", [long])
