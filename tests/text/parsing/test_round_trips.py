"""Calls in every format whose values quote the format's own markers, cut at random and read back.

An answer is written with a placeholder where a value quotes something. What is quoted goes in as
ordinary tokens that spell it, or as the token itself.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eaglegate.text.events import FinishReason, Outcome
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import Folded, fold
from eaglegate.text.parsing.formats.harmony import ENDS
from eaglegate.text.parsing.registry import reasoning_format, tool_format
from eaglegate.text.parsing.vocabulary import AddedToken, Vocabulary
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


def _write_mistral(version: str, content: str, calls: Sequence[Call]) -> tuple[Any, list[int]]:
    """Mistral's own library: its tokenizer, and the tokens of an answer."""
    from mistral_common.protocol.instruct.messages import AssistantMessage
    from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
    from mistral_common.tokens.tokenizers import instruct

    tokenizer = _tekken(version)
    encoder = getattr(instruct, f"InstructTokenizer{version.upper()}")(tokenizer)
    written = [
        ToolCall(id=f"abcdef12{number}", function=FunctionCall(name="write_file", arguments=call))
        for number, call in enumerate(calls)
    ]
    message = AssistantMessage(content=content or None, tool_calls=written)
    return tokenizer, encoder.encode_assistant_message(message, False)


@cache
def _tekken(version: str) -> Any:
    """The vocabulary that the library ships, with the special tokens of a version."""
    data = Path(pytest.importorskip("mistral_common").__file__).parent / "data/tekken_240911.json"
    from mistral_common.tokens.tokenizers.base import SpecialTokens, TokenizerVersion
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    file = json.loads(data.read_text(encoding="utf-8"))
    special = [
        {"rank": rank, "token_str": token.value, "is_control": True}
        for rank, token in enumerate(SpecialTokens)
    ]
    return Tekkenizer(
        file["vocab"],
        special,
        file["config"]["pattern"],
        file["config"]["default_vocab_size"],
        file["config"]["default_num_special_tokens"],
        TokenizerVersion(version),
    )


@pytest.mark.parametrize("version", ["v3", "v7", "v11", "v13"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_result_of_a_mistral_call_goes_back_under_its_id(version: str) -> None:
    """A client returns the id that it was given; the library refuses one of another form."""
    pytest.importorskip("mistral_common")
    from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
    from mistral_common.protocol.instruct.request import InstructRequest
    from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
    from mistral_common.protocol.instruct.validator import MistralRequestValidatorV3
    from mistral_common.tokens.tokenizers import instruct
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    tokenizer, ids = _write_mistral(version, "", CALLS)
    answer = _read(
        _tekken_vocabulary(tokenizer), ("mistral", "mistral"), ids, random.Random(version)
    )
    returned = [
        ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in answer.calls
    ]
    results = [ToolMessage(content=call.id[::-1], tool_call_id=call.id) for call in answer.calls]
    messages = [UserMessage(content="Hi"), AssistantMessage(tool_calls=returned), *results]
    MistralRequestValidatorV3().validate_messages(messages)
    encoder = getattr(instruct, f"InstructTokenizer{version.upper()}")(tokenizer)
    prompt = encoder.encode_instruct(InstructRequest(messages=messages)).tokens
    text = tokenizer.decode(prompt, special_token_policy=SpecialTokenPolicy.KEEP)
    assert len({call.id for call in answer.calls}) == len(CALLS)
    in_call = version != "v13"  # from then on neither side names it
    assert [text.count(call.id) for call in answer.calls] == [2 * in_call] * len(CALLS)


def _tekken_vocabulary(tokenizer: Any) -> Vocabulary:
    special = [
        AddedToken(id, tokenizer.id_to_piece(id), True)
        for id in range(tokenizer.num_special_tokens)
    ]
    return Vocabulary(
        tokenizer.id_to_byte_piece,
        special,
        encode=lambda text: tokenizer.encode(text, bos=False, eos=False),
        size=tokenizer.n_words,
    )


@pytest.mark.parametrize("version", ["v3", "v7", "v11", "v13"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_calls_as_mistral_common_writes_them(version: str) -> None:
    pytest.importorskip("mistral_common")
    dice = random.Random(version)
    long = [{"path": "a", "content": filler(64_000)}]
    for content in ("", "I write it.") if version != "v3" else ("",):
        for calls in (CALLS, long):
            tokenizer, ids = _write_mistral(version, content, calls)
            vocabulary = _tekken_vocabulary(tokenizer)
            for _ in range(3):
                answer = _read(vocabulary, ("mistral", "mistral"), ids, dice)
                _check(answer, content, calls)
