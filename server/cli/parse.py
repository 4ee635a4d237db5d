"""``eaglegate parse``: show how the gateway's parsers read a model's output, without an engine.

The input is raw text, or an object that assigns tokens to steps. The output is its tokens, their
phases, the events and the folded message. With ``--jsonl`` each input line is such an object, and
each output line is a folded message.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

import msgspec

from eaglegate.text.events import FinishReason, ParserEvent, Phase
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import fold
from eaglegate.text.parsing.parser import Parser
from eaglegate.text.parsing.registry import (
    UnknownParser,
    reasoning_format,
    reasoning_parser_names,
    tool_format,
    tool_parser_names,
)
from eaglegate.text.parsing.vocabulary import Vocabulary

_FINISH = {"tool_calls": FinishReason.STOP, "abort": FinishReason.LENGTH} | {
    reason.value: reason for reason in FinishReason
}
"""The engine's finish reasons by the names in captures; an aborted answer counts as cut."""
Kind = TypeVar("Kind")
Count = Annotated[int, msgspec.Meta(ge=0)]
OfferedTools = list[dict[str, Any]]


class ParseLine(msgspec.Struct):
    """One line of ``--jsonl``, as docs/parsers.md describes it."""

    token_ids: list[Count]
    cuts: list[Count] | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "abort"] | None = None
    starts_in: Literal["content", "reasoning"] | None = None
    tools: OfferedTools | None = None
    stop: list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None


class InvalidLine(ValueError):
    """A line is invalid. The message names the rule."""


@dataclass(frozen=True, slots=True)
class ParseJob:
    """One output to parse: token ids, divided into steps."""

    steps: tuple[tuple[int, ...], ...]
    finish: FinishReason
    starts_in: Phase
    tools: Sequence[Mapping[str, Any]] | None
    stop: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 0 if every line could be parsed."""
    options = _make_argument_parser().parse_args(argv)
    try:
        vocabulary = Vocabulary.from_directory(Path(options.tokenizer))
        tools = options.tools and _read(Path(options.tools).read_bytes(), OfferedTools)
        _check_names(options)
        if not options.jsonl:
            return _parse_answer(vocabulary, options, tools)
        if options.file is None:
            return _parse_lines(sys.stdin.buffer, vocabulary, options, tools)
        with Path(options.file).open("rb") as lines:
            return _parse_lines(lines, vocabulary, options, tools)
    except (UnknownParser, OSError, ValueError) as error:
        print(f"eaglegate parse: {error}", file=sys.stderr)
        return 2


def _make_argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("eaglegate parse", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "file", nargs="?", help="file with a captured answer (default: standard input)"
    )
    parser.add_argument("--tokenizer", required=True, help="folder with the model's tokenizer")
    parser.add_argument("--tool-call-parser", help=", ".join(tool_parser_names()))
    parser.add_argument("--reasoning-parser", help=", ".join(reasoning_parser_names()))
    parser.add_argument("--tools", help="JSON file with the tools offered, as in the API")
    parser.add_argument("--starts-in", choices=("content", "reasoning"), default="content")
    parser.add_argument("--finish-reason", choices=sorted(_FINISH), default="stop")
    parser.add_argument(
        "--jsonl", action="store_true", help="read one JSON object per line (docs/parsers.md)"
    )
    return parser


def _check_names(options: argparse.Namespace) -> None:
    reasoning_format(options.reasoning_parser)
    if options.tool_call_parser:
        tool_format(options.tool_call_parser)


def _parse_answer(vocabulary: Vocabulary, options: argparse.Namespace, offered_tools: Any) -> int:
    job = _read_answer(vocabulary, options, offered_tools)
    parser = _make_parser(vocabulary, options, job)
    events: list[ParserEvent] = []
    for step in job.steps:
        step_events = parser.feed(step)
        for token_id in step:
            text = vocabulary.pieces[token_id].decode("utf-8", "backslashreplace")
            print(f"{token_id:>7}  {text!r}  {parser.phase.value}")
        print(*step_events, sep="\n", end="\n" * bool(step_events))
        events += step_events
    last_events = parser.flush(job.finish)
    print(*last_events, sep="\n", end="\n" * bool(last_events))
    message = _fold_message(parser, job, events + last_events)
    for number, call in enumerate(message["tool_calls"]):
        print(f"call {number}: {call['name']}: {call['outcome']}")
    print(json.dumps(message, ensure_ascii=False, indent=2))
    return 0


def _read_answer(vocabulary: Vocabulary, options: argparse.Namespace, tools: Any) -> ParseJob:
    """Read raw text, or an object in the format of ``--jsonl``."""
    if options.file is None:
        text = sys.stdin.read()
    else:
        text = Path(options.file).read_text(encoding="utf-8")
    if text.lstrip().startswith("{") and '"token_ids"' in text:
        return _read_line(text.encode(), tools, vocabulary.size)
    steps = tuple((token_id,) for token_id in vocabulary.encode(text))
    starts_in = Phase(options.starts_in)
    return ParseJob(steps, _FINISH[options.finish_reason], starts_in, tools, ())


def _parse_lines(
    lines: BinaryIO, vocabulary: Vocabulary, options: argparse.Namespace, tools: Any
) -> int:
    status = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = _read_line(text, tools, vocabulary.size)
            parser = _make_parser(vocabulary, options, line)
            answer = _fold_message(parser, line, list(_parse_events(parser, line)))
        except InvalidLine as error:
            status, answer = 1, {"error": f"line {number}: {error}"}
        print(json.dumps(answer, ensure_ascii=False))
    return status


def _make_parser(vocabulary: Vocabulary, options: argparse.Namespace, line: ParseJob) -> Parser:
    numbers = count()
    return make_parser(
        vocabulary,
        tool_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
        tools=line.tools,
        starts_in=line.starts_in,
        stop=line.stop,
        new_id=lambda: f"call_{next(numbers)}",
    )


def _parse_events(parser: Parser, line: ParseJob) -> Iterator[ParserEvent]:
    for step in line.steps:
        yield from parser.feed(step)
    yield from parser.flush(line.finish)


def _fold_message(parser: Parser, line: ParseJob, events: list[ParserEvent]) -> dict[str, Any]:
    answer = fold(events)
    return {
        "reasoning": answer.reasoning,
        "content": answer.content,
        "tool_calls": [
            {"id": c.id, "name": c.name, "arguments": c.arguments, "outcome": c.outcome}
            for c in answer.calls
        ],
        "finish_reason": parser.finish_reason(line.finish),
    }


def _read_line(text: bytes, offered_tools: OfferedTools | None, size: int) -> ParseJob:
    line = _read(text, ParseLine)
    ids, cuts = line.token_ids, line.cuts or []
    if ids and max(ids) >= size:
        raise InvalidLine(f"token_ids must be below {size}, the tokenizer's size, not {max(ids)}")
    if sum(cuts) > len(ids):
        raise InvalidLine(f"cuts add up to {sum(cuts)}, token_ids has only {len(ids)}")
    remainder = iter(ids)  # tokens beyond the cuts form one step each
    sizes = cuts + [1] * (len(ids) - sum(cuts))
    return ParseJob(
        tuple(tuple(islice(remainder, size)) for size in sizes),
        _FINISH[line.finish_reason or "stop"],
        Phase(line.starts_in or "content"),
        offered_tools if line.tools is None else line.tools,
        tuple(line.stop or ()),
    )


def _read(text: bytes, kind: type[Kind]) -> Kind:
    """Read JSON of this type. Raises InvalidLine."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidLine(str(error)) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
