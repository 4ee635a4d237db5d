"""Kimi K3: elements in three tokens, a channel for each part of the answer.

    <|open|>think<|sep|>Let me see.<|close|>think<|sep|>
    <|open|>response<|sep|>I look it up.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>

Source: the XTML format as vllm-project/vllm documents it (vllm/tool_parsers/kimi_k3_tool_parser.py
and its reasoning parser). Strings are written as they are, other values as JSON; attributes have
``&quot;`` and ``&amp;``. An element ends only at its own closing tag, where what follows agrees.

One grammar reads the whole answer, asked for as tool format, as reasoning format or as both.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from engine.events import Phase
from server.parsing.arguments import ArgumentsWriter
from server.parsing.markers import Follow
from server.parsing.message import Context, ReasoningFormat, ToolFormat
from server.parsing.reader import DONE, Ended, Grammar, Sink, Until, Want, ignore
from server.parsing.schemas import STRING, TYPES
from server.parsing.tagged import Closing, Tagged

OPEN, CLOSE, SEP = MARKERS = ("<|open|>", "<|close|>", "<|sep|>")
_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')


def read_channels(context: Context) -> Grammar:
    """Element after element."""
    stops = context.lexicon.stops(*MARKERS)
    if context.starts_in is Phase.REASONING:
        yield from _read_thinking(context)
    while True:
        marker = yield Until(stops, context.out.content.write, stray=ignore)
        if marker != SEP:
            name, attributes = yield from _read_header(context)
            if marker == OPEN:
                yield from _read_element(name, attributes, context)


def _read_header(context: Context) -> Generator[Want, str, tuple[str, dict[str, str]]]:
    """The name and the attributes of a tag."""
    parts: list[str] = []
    yield Until(context.lexicon.stops(SEP), parts.append)
    name, _, rest = "".join(parts).strip().partition(" ")
    attributes = {
        found[1]: found[2].replace("&quot;", '"').replace("&amp;", "&")
        for found in _ATTRIBUTE.finditer(rest)
    }
    return name, attributes


def _read_element(name: str, attributes: dict[str, str], context: Context) -> Grammar:
    if name == "think":
        yield from _read_thinking(context)
    elif name == "response":
        yield from _read_body("response", context.out.content.write, context)
    elif name == "call" and attributes.get("tool") and context.tools.channels:
        context.out.phase = Phase.TOOL_CALL
        yield from _read_call(attributes["tool"], context)
        context.out.phase = Phase.CONTENT


def _read_thinking(context: Context) -> Grammar:
    context.out.phase = Phase.REASONING
    yield from _read_body("think", context.out.reasoning.write, context)
    context.out.phase = Phase.CONTENT


def _read_call(tool: str, context: Context) -> Grammar:
    """The arguments of a call, up to its closing tag or the next call."""
    context.calls.begin(tool)
    arguments = ArgumentsWriter(context.calls)
    try:
        while True:
            marker = yield Until(context.lexicon.stops(OPEN, CLOSE), ignore)
            name, attributes = yield from _read_header(context)
            if marker == OPEN and name == "argument" and "key" in attributes:
                yield from _read_argument(attributes, arguments, context)
            elif name in ("call", "tools"):
                break
    except Ended as ended:
        arguments.truncate(ended.by_model)
        raise
    arguments.close()
    context.calls.close()
    if marker == OPEN and name == "call":
        yield from _read_element(name, attributes, context)


def _read_argument(
    attributes: dict[str, str], arguments: ArgumentsWriter, context: Context
) -> Grammar:
    kind = attributes.get("type", "string")
    arguments.begin(attributes["key"], STRING if kind == "string" else TYPES - STRING)
    yield from _read_body("argument", arguments.write, context)
    arguments.end()


def _read_body(name: str, sink: Sink, context: Context) -> Grammar:
    """Text up to its element's closing tag, and that tag."""
    lexicon = context.lexicon
    follows: Follow = {name: context.follow(_then(name, context), SEP)}
    words = context.follow(follows, CLOSE)
    implied: tuple[str, ...] = ()
    if name == "response":
        implied = lexicon.words(OPEN)
        words |= dict.fromkeys(implied, {"tools": context.follow(None, SEP)})  # noqa: RUF024
    if (yield Tagged(lexicon, Closing(words, implied), sink)) != DONE:
        yield Until(lexicon.stops(SEP), ignore)


def _then(name: str, context: Context) -> Follow | None:
    """Only behind an argument more must follow: its text may quote anything."""
    return context.follow(None, OPEN, CLOSE) if name == "argument" else None


def _no_calls(_opener: str, _context: Context) -> Grammar:
    yield from ()


FORMAT = ToolFormat((), _no_calls, MARKERS, framing="", channels=read_channels)
REASONING = ReasoningFormat((), (), framing="", channels=read_channels, inner=MARKERS)
