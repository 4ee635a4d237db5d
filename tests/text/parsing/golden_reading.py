"""Reads golden cases and says where a reading is not the ideal one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

from eaglegate.text.events import (
    ContentDelta,
    ParserEvent,
    Phase,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.parsing.registry import reasoning_format
from eaglegate.text.parsing.vocabulary import Vocabulary
from tests.text.parsing.golden_corpus import ALONE, Call, Case, Format, Marker
from tests.text.parsing.golden_cuts import Cutting, in_steps
from tests.text.parsing.golden_tokenizer import encode, format_tokenizer


@dataclass
class Reading:
    """The fold of a stream."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str = ""


@cache
def known(form: Format) -> tuple[Tokenizer, Vocabulary]:
    made = format_tokenizer(form)
    return made, Vocabulary.from_tokenizers(made)


def output(case: Case, *, in_letters: bool = False) -> tuple[list[int], int | None, list[int]]:
    """The token ids, the end-of-sequence id, and the cuts the case asks for, as token counts."""
    made, vocabulary = known(case.format)
    ids = encode(made, case.pieces, in_letters=in_letters)
    eos = made.token_to_id(case.format.eos) if case.eos and case.format.eos else None
    ends, size = [], 0
    for token_id in ids:
        size += len(vocabulary.pieces[token_id])
        ends.append(size)
    own = [sum(end <= place for end in ends) for place in case.cut_after]
    return ids, eos, own


def parser_of(case: Case, tool_parser: str | None) -> Parser:
    return make_parser(
        known(case.format)[1],
        tool_parser=tool_parser,
        reasoning_parser=case.format.reasoning_parser,
        tools=case.offered(),
        starts_in=Phase(case.starts_in),
    )


def read(case: Case, cutting: Cutting, tool_parser: str | None) -> tuple[list[ParserEvent], str]:
    parser = parser_of(case, tool_parser)
    events: list[ParserEvent] = []
    for chunk in cutting.chunks:
        events += parser.feed(chunk)
    events += parser.flush(case.finish)
    return events, parser.finish_reason(case.finish)


def fold(events: Sequence[ParserEvent], finish_reason: str) -> Reading:
    """The answer that the stream's events add up to; asserts that they keep the rules of a
    stream."""
    reading = Reading(finish_reason=finish_reason)
    started: list[ToolCallStart] = []
    arguments = ""
    is_open = False
    for event in events:
        match event:
            case ReasoningDelta(text):
                assert text, "an empty reasoning delta"
                reading.reasoning += text
            case ContentDelta(text):
                assert text, "an empty content delta"
                reading.content += text
            case ToolCallStart(index, id, name):
                assert not is_open, "a call starts inside another"
                assert index == len(started), "indexes count from 0"
                assert id and name, "a call starts with its id and its name"
                assert id not in [call.id for call in started], "ids tell calls apart"
                started.append(event)
                arguments, is_open = "", True
            case ToolCallDelta(index, text):
                assert is_open and index == len(started) - 1, "arguments of the open call"
                assert text, "an empty arguments delta"
                arguments += text
            case ToolCallEnd(index, outcome):
                assert is_open and index == len(started) - 1, "the open call ends"
                is_open = False
                last = started[-1]
                reading.calls.append(Call(last.name, arguments, outcome, last.id))
    assert not is_open, "a call never ends"
    return reading


def joined(events: Sequence[ParserEvent], written_ids: bool) -> list[object]:
    """The stream with neighbouring deltas of one kind joined: the same at every cutting."""
    stream: list[object] = []
    for event in events:
        last = stream[-1] if stream else None
        match event, last:
            case ReasoningDelta(text), ReasoningDelta(before):
                stream[-1] = ReasoningDelta(before + text)
            case ContentDelta(text), ContentDelta(before):
                stream[-1] = ContentDelta(before + text)
            case ToolCallDelta(index, text), ToolCallDelta(_, before):
                stream[-1] = ToolCallDelta(index, before + text)
            case ToolCallStart(index, id, name), _:
                stream.append(ToolCallStart(index, id if written_ids else "", name))
            case _:
                stream.append(event)
    return stream


def disagreements(case: Case, reading: Reading) -> Iterator[str]:
    """Differences between a reading and the ideal one."""
    for part in ("reasoning", "content", "finish_reason"):
        wanted, got = getattr(case, part), getattr(reading, part)
        if wanted != got:
            yield f"{part}: wanted {shown(wanted)}\n{' ' * len(part)}  got    {shown(got)}"
    if len(case.calls) != len(reading.calls):
        yield f"calls: wanted {len(case.calls)}, got {[call.name for call in reading.calls]}"
    for index, (wanted, got) in enumerate(zip(case.calls, reading.calls, strict=False)):
        yield from differing(f"call {index}", wanted, got, case.format.arguments == "json")


def differing(where: str, wanted: Call, got: Call, as_json: bool) -> Iterator[str]:
    if wanted.name != got.name:
        yield f"{where}: wanted name {wanted.name!r}, got {got.name!r}"
    if wanted.id not in (None, got.id):
        yield f"{where}: wanted id {wanted.id!r}, got {got.id!r}"
    if wanted.outcome is not got.outcome:
        yield f"{where}: wanted {wanted.outcome}, got {got.outcome}"
    if not same_arguments(wanted, got, as_json):
        yield (
            f"{where}: wanted {shown(wanted.arguments)}\n"
            f"{' ' * len(where)}  got    {shown(got.arguments)}"
        )


def same_arguments(wanted: Call, got: Call, as_json: bool) -> bool:
    return wanted.arguments == got.arguments or (
        as_json and same_json(wanted.arguments, got.arguments)
    )


def shown(text: str) -> str:
    """Long texts are cut in the middle; two of the same length may differ there."""
    return repr(text) if len(text) < 400 else f"{text[:180]!r} … {text[-180:]!r} ({len(text)})"


def described(case: Case, cutting: Cutting, problems: Sequence[str]) -> str:
    pieces = known(case.format)[1].pieces
    chunks = [b"".join(pieces[i] for i in ids).decode(errors="replace") for ids in cutting.chunks]
    if len(chunks) > 40:
        chunks = [*chunks[:40], f"… {len(chunks) - 40} more"]
    lines = [f"{case.id}, cut: {cutting.name}", *([case.note] if case.note else []), *problems]
    return "\n".join([*lines, "chunks: " + " ".join(map(repr, chunks))])


def main_parser(case: Case) -> str | None:
    return case.format.tool_parsers[0] if case.format.tool_parsers else None


def check(case: Case, cuts: Iterator[Cutting], tool_parser: str | None) -> None:
    written_ids = all(call.id for call in case.calls)
    first: tuple[Cutting, list[object]] | None = None
    for cutting in cuts:
        events, finish_reason = read(case, cutting, tool_parser)
        problems = list(disagreements(case, fold(events, finish_reason)))
        stream = joined(events, written_ids)
        if first is None:
            first = cutting, stream
        elif stream != first[1] and not problems:
            problems = [f"the stream differs from that of: {first[0].name}"]
        assert not problems, described(case, cutting, problems)


def check_steps(case: Case) -> None:
    """Read a case in tokens of words and of letters, 1 to 8 of them a step.

    In letters it comes as others send it: the end-of-sequence token is not there, and a case
    without thinking is read without a reasoning parser.
    """
    ids, eos, _ = output(case)
    check(case, in_steps(ids, eos), main_parser(case))
    bare = as_others_send(case)
    ids, eos, _ = output(bare, in_letters=True)
    check(bare, islice(in_steps(ids, eos), 8), main_parser(bare))


def read_steps(case: Case) -> Iterator[list[ParserEvent]]:
    """The streams of a case in tokens of words and of letters, 1 to 8 of them a step."""
    for in_letters in (False, True):
        ids, eos, _ = output(case, in_letters=in_letters)
        for cutting in islice(in_steps(ids, eos), 8 if in_letters else None):
            yield read(case, cutting, main_parser(case))[0]


def readings(case: Case) -> list[Reading]:
    """What ``read_steps`` adds up to, for outputs of which only a part of the reading matters."""
    return [fold(events, "") for events in read_steps(case)]


def as_others_send(case: Case) -> Case:
    """The case without its end-of-sequence token and a reasoning parser that reads nothing."""
    form = case.format
    markers = {Marker(marker) for marker in reasoning_format(form.reasoning_parser).markers}
    thinks = case.reasoning or case.starts_in == "reasoning" or markers.intersection(case.pieces)
    if not thinks and form.name not in ALONE:
        form = replace(form, reasoning_parser=None)
    return replace(case, format=form, eos=False)


def check_all(cases: Sequence[Case], check_one: Callable[[Case], None]) -> None:
    """Check every case, and name all that fail."""
    problems: list[str] = []
    for case in cases:
        try:
            check_one(case)
        except Exception as error:
            problems.append(f"{case.id}: {error!r}" if not str(error) else f"{case.id}: {error}")
    assert not problems, f"{len(problems)} of {len(cases)} cases:\n" + "\n\n".join(problems[:20])


@dataclass(frozen=True)
class Number:
    spelled: str


def _ordered(text: str) -> Any:
    """Objects as pairs, in order; numbers as they are spelled."""
    return json.loads(
        text,
        object_pairs_hook=tuple,
        parse_int=Number,
        parse_float=Number,
        parse_constant=Number,
    )


def same_json(one: str, other: str) -> bool:
    try:
        return bool(_ordered(one) == _ordered(other))
    except ValueError:
        return one == other
