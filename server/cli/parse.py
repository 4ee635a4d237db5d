"""``eaglegate parse``: show how the gateway's parsers read a model's output, without an engine.

The input is raw text, or an object that assigns tokens to steps. The output is its tokens, their
phases, the events and the folded message. With ``--jsonl`` each input line is such an object, and
each output line is a folded message.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from eaglegate.text.events import FinishReason, ParserEvent, Phase, ToolCallEnd
from eaglegate.text.parsing.answer import make_fallback_parser, make_parser
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
_STARTS = {Phase.CONTENT.value, Phase.REASONING.value}


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
        tools = _read_tools(options.tools)
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
    parser.add_argument("--starts-in", choices=sorted(_STARTS), default="content")
    parser.add_argument("--finish-reason", choices=sorted(_FINISH), default="stop")
    parser.add_argument(
        "--compare", choices=["vllm"], help="also run vLLM's parsers of the same names, and compare"
    )
    parser.add_argument(
        "--jsonl", action="store_true", help="read one JSON object per line (docs/parsers.md)"
    )
    return parser


def _check_names(options: argparse.Namespace) -> None:
    reasoning_format(options.reasoning_parser)
    if options.tool_call_parser:
        tool_format(options.tool_call_parser)


def _read_tools(path: str | None) -> list[Mapping[str, Any]] | None:
    return _check_tools(json.loads(Path(path).read_text(encoding="utf-8"))) if path else None


def _parse_answer(vocabulary: Vocabulary, options: argparse.Namespace, offered_tools: Any) -> int:
    job = _read_answer(vocabulary, options, offered_tools)
    parser = _make_parser(vocabulary, options, job)
    report = ParseReport(sys.stdout, wants_color(sys.stdout))
    events: list[ParserEvent] = []
    for step in job.steps:
        step_events = parser.feed(step)
        tokens = [_describe_token(vocabulary, token_id) for token_id in step]
        report.add_step(tokens, parser.phase, step_events)
        events += step_events
    last_events = parser.flush(job.finish)
    report.add_events(last_events)
    message = _fold_message(parser, job, events + last_events)
    report.add_message(message)
    if not options.compare:
        return 0
    if job.tools is None:
        tools = [{"name": call["name"]} for call in message["tool_calls"]]
        job = replace(job, tools=tools)
    title, reference = _parse_as_vllm(vocabulary, options, job)
    return int(report.compare(message, reference, title))


def _describe_token(vocabulary: Vocabulary, token_id: int) -> tuple[int, str, bool]:
    text = vocabulary.pieces[token_id].decode("utf-8", "backslashreplace")
    return token_id, text, token_id in vocabulary.added


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


def _parse_as_vllm(
    vocabulary: Vocabulary, options: argparse.Namespace, job: ParseJob
) -> tuple[str, dict[str, Any]]:
    """Parse with vLLM's parsers of the same names. Raises ValueError if that is impossible."""
    try:
        from eaglegate.engine.vllm_backend.parser_fallback import open_parsers
    except ImportError as error:
        raise ValueError(f"--compare vllm needs vLLM, which is not installed: {error}") from error

    tools, reasoning = options.tool_call_parser, options.reasoning_parser
    parsers = open_parsers(options.tokenizer, tools, reasoning)
    offers = [
        tool if "function" in tool else {"type": "function", "function": tool}
        for tool in job.tools or ()
    ]
    openings = reasoning_format(reasoning).openings if job.starts_in is Phase.REASONING else ()
    prompt = vocabulary.encode(openings[0] if openings else "\n")
    parser = make_fallback_parser(
        vocabulary, parsers.make(offers, prompt), tools=offers, stop=job.stop
    )
    events = list(_parse_events(parser, job))
    return f"vLLM {parsers.version}", _fold_message(parser, job, events)


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


def _read_line(text: bytes, offered_tools: Any, size: int) -> ParseJob:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InvalidLine(f"must be one JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidLine("must be a JSON object")
    ids = _read_integers(fields, "token_ids")
    if ids and max(ids) >= size:
        raise InvalidLine(f"token_ids must be below {size}, the tokenizer's size, not {max(ids)}")
    starts = _read_choice(fields, "starts_in", _STARTS, "content")
    finish = _FINISH[_read_choice(fields, "finish_reason", set(_FINISH), "stop")]
    tools = _check_tools(fields["tools"]) if fields.get("tools") is not None else offered_tools
    return ParseJob(_split_steps(ids, fields), finish, Phase(starts), tools, _read_stop(fields))


def _split_steps(ids: list[int], fields: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Divide ``ids`` into steps. Tokens beyond ``cuts`` form one step each."""
    cuts = _read_integers(fields, "cuts") if fields.get("cuts") is not None else []
    if sum(cuts) > len(ids):
        raise InvalidLine(f"cuts add up to {sum(cuts)}, token_ids has only {len(ids)}")
    remainder = iter(ids)
    return tuple(tuple(islice(remainder, size)) for size in cuts + [1] * (len(ids) - sum(cuts)))


def _read_integers(fields: Mapping[str, Any], key: str) -> list[int]:
    values = fields.get(key)
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise InvalidLine(f"{key} must be a list of integers, 0 or more")
    return values


def _read_choice(fields: Mapping[str, Any], key: str, choices: set[str], default: str) -> str:
    value = fields.get(key) or default
    if value not in choices:
        raise InvalidLine(f"{key} must be one of {', '.join(sorted(choices))}, not {value!r}")
    return str(value)


def _read_stop(fields: Mapping[str, Any]) -> tuple[str, ...]:
    stop = fields.get("stop") or []
    if not isinstance(stop, list) or not all(isinstance(item, str) and item for item in stop):
        raise InvalidLine("stop must be a list of strings that are not empty")
    return tuple(stop)


def _check_tools(tools: Any) -> list[Mapping[str, Any]]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidLine("tools must be a list of objects")
    return tools


_COLORS = {
    Phase.REASONING: "36",
    Phase.CONTENT: "32",
    Phase.TOOL_CALL: "33",
    "marker": "1;35",
    "good": "1;32",
    "bad": "1;31",
    "dim": "2",
}
_GOOD = frozenset({"valid", "unchecked"})


def wants_color(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR")


class ParseReport:
    """Writes the report to ``out``."""

    def __init__(self, out: TextIO, color: bool) -> None:
        self._out = out
        self._color = color

    def paint(self, text: str, kind: str) -> str:
        return f"\033[{_COLORS[kind]}m{text}\033[0m" if self._color else text

    def add_step(
        self, tokens: Sequence[tuple[int, str, bool]], phase: Phase, events: Sequence[ParserEvent]
    ) -> None:
        """Write the tokens of a step, as (id, text, is an added token), and its events."""
        for token_id, text, is_added in tokens:
            painted_text = self.paint(repr(text), "marker" if is_added else phase)
            self._print(f"{token_id:>7}  {painted_text}  {self.paint(phase.value, 'dim')}")
        self.add_events(events)

    def add_events(self, events: Sequence[ParserEvent]) -> None:
        for event in events:
            text = str(event)
            if isinstance(event, ToolCallEnd):
                text = self.paint(text, "good" if event.outcome in _GOOD else "bad")
            self._print(text)

    def add_message(self, message: Mapping[str, Any]) -> None:
        for number, call in enumerate(message["tool_calls"]):
            outcome = str(call["outcome"])
            painted_outcome = self.paint(outcome, "good" if outcome in _GOOD else "bad")
            self._print(f"call {number}: {call['name']}: {painted_outcome}")
        self._print(json.dumps(message, ensure_ascii=False, indent=2))

    def compare(self, message: Mapping[str, Any], reference: Mapping[str, Any], title: str) -> bool:
        """Write the differences of two messages. Return True if there are any."""
        self._print(f"{title}:")
        rows = [(part, message[part], reference[part]) for part in ("reasoning", "content")]
        calls = zip_longest(_calls(message), _calls(reference))
        rows += [(f"call {number}", *pair) for number, pair in enumerate(calls)]
        differences = [row for row in rows if self._compare_row(*row)]
        return bool(differences)

    def _compare_row(self, part: str, value: Any, reference: Any) -> bool:
        if value == reference:
            self._print(f"  {part}: {self.paint('same', 'good')}")
            return False
        if _normalise(value) == _normalise(reference):
            self._print(f"  {part}: {self.paint('same but for white space', 'good')}")
            return False
        self._print(f"  {part}: {self.paint('differs', 'bad')}")
        self._print(f"    here {value!r}\n    vLLM {reference!r}")
        return True

    def _print(self, line: str) -> None:
        print(line, file=self._out)


def _calls(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(call["name"], call["arguments"]) for call in message["tool_calls"]]


def _normalise(part: Any) -> Any:
    """Return a text without surrounding white space, or a call with parsed arguments."""
    if isinstance(part, str):
        return part.strip()
    if part is None:
        return None
    name, arguments = part
    try:
        return name, json.loads(arguments)
    except ValueError:
        return name, arguments


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
