"""Kimi K3: elements written with three tokens, one element for each part of the answer.

    <|open|>think<|sep|>Let me see.<|close|>think<|sep|>
    <|open|>response<|sep|>I look it up.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|>

Source: the XTML format as vllm-project/vllm documents it (vllm/tool_parsers/kimi_k3_tool_parser.py
and its reasoning parser). Strings are written as plain text, other values as JSON, and attributes
escape with ``&quot;`` and ``&amp;``. An element ends only at its own closing tag, if valid text
follows. In the template that ggml-org/llama.cpp keeps (models/templates/Kimi-K3.jinja), one
``json`` element may contain all arguments. A marker without a tag after it is text.

One routine reads the whole answer, as tool format, as reasoning format or as both.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from eaglegate.text.events import Phase
from eaglegate.text.parsing.arguments import ArgumentsWriter
from eaglegate.text.parsing.markers import NAME, Delimiters, Follow, Lexicon
from eaglegate.text.parsing.message import (
    Ahead,
    ParsingContext,
    ReasoningFormat,
    ToolFormat,
    no_calls,
)
from eaglegate.text.parsing.quotations import Kept
from eaglegate.text.parsing.reader import DONE, Ended, Routine, TextSink, Until, Want, ignore
from eaglegate.text.parsing.schemas import STRING, TYPES
from eaglegate.text.parsing.tagged import FORCED, CallValue, Closing, Tagged
from eaglegate.text.parsing.value_text import holds_next

OPEN, CLOSE, SEP = MARKERS = ("<|open|>", "<|close|>", "<|sep|>")
TEXT = "text"
"""Result for a tag that turned out to be text."""
_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')
_HEADER_BEGINS = re.compile(
    r"\s{0,9}+\w{0,64}+(?:\s{1,9}+(?:\w{1,64}+\s{0,9}+(?:=\s{0,9}+(?:\"[^\"]{0,999}+\"?+)?+)?+)?+)*+"
)


class _Header:
    """Want for the inside of a tag up to a marker. Ends with TEXT if the text cannot be a tag."""

    __slots__ = ("_delimiters", "_parts", "tokens")
    lexicon: Lexicon | None = None

    def __init__(self, delimiters: Delimiters, parts: list[str]) -> None:
        self._delimiters = delimiters
        self._parts = parts
        self.tokens = delimiters.tokens

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        start, end, marker = self._delimiters.find(text, 0, has_more)
        self._parts.append(text[:start])
        if not _HEADER_BEGINS.fullmatch("".join(self._parts)):
            return TEXT, text[start:]
        return marker, text[end:] if marker else text[start:]

    def plain(self, text: str) -> None:
        """Do nothing: a tag contains no other token."""

    def truncate(self, _text: str) -> tuple[str | None, str]:
        return None, ""


def read_channels(context: ParsingContext) -> Routine:
    """Read elements one after another."""
    if context.starts_in is Phase.REASONING:
        yield from _read_thinking(context)
    yield from _read_elements(context)


def _read_elements(context: ParsingContext) -> Routine:
    delimiters, write = context.lexicon.delimiters(*MARKERS), context.out.content.write
    marker = ""
    while True:
        if marker not in (OPEN, CLOSE):
            marker = yield Until(delimiters, write, stray=ignore)
        if marker == SEP:
            marker = ""
            continue
        end, header = yield from _read_header(context)
        if end != SEP:
            write(marker + header)
        elif marker == OPEN:
            yield from _read_element(*_parse_header(header), context)
        marker = end


def _read_header(context: ParsingContext) -> Generator[Want, str, tuple[str, str]]:
    """Read a tag. Return its end, which is SEP for a valid tag, and its inside."""
    parts: list[str] = []
    end = yield _Header(context.lexicon.delimiters(*MARKERS), parts)
    return end, "".join(parts)


def _parse_header(header: str) -> tuple[str, dict[str, str]]:
    """Return the name and the attributes of a tag."""
    name, _, tail = header.strip().partition(" ")
    attributes = {
        match[1]: match[2].replace("&quot;", '"').replace("&amp;", "&")
        for match in _ATTRIBUTE.finditer(tail)
    }
    return name, attributes


def _read_element(name: str, attributes: dict[str, str], context: ParsingContext) -> Routine:
    if name == "think":
        yield from _read_thinking(context)
    elif name == "response":
        yield from _read_body("response", context.out.content.write, context)
    elif name == "call" and attributes.get("tool") and context.tools.channels:
        context.out.phase = Phase.TOOL_CALL
        yield from _read_call(attributes["tool"], context)
        context.out.phase = Phase.CONTENT


def _read_thinking(context: ParsingContext) -> Routine:
    """Read thinking. Another element in it is quoted, or the model has forgotten to close it."""
    context.out.phase = Phase.REASONING
    if not (yield from _is_skipped(context)):
        closing = _find_closing("think", context)
        end = yield Tagged(context.lexicon, closing, context.out.reasoning.write)
        if end == DONE:
            yield from _read_unclosed(context)
        else:
            yield Until(context.lexicon.delimiters(SEP), ignore)
    context.out.phase = Phase.CONTENT


def _read_unclosed(context: ParsingContext) -> Routine:
    """Read elements in open thinking, as ``quotations.read_unclosed`` does with calls."""
    delimiters, section, out = context.lexicon.delimiters(*MARKERS), Kept(), context.out
    last_marker = ""
    try:
        while True:
            parts: list[str] = []
            marker = yield Until(delimiters, parts.append)
            text = "".join(parts)
            if (last_marker, text.strip(), marker) == (CLOSE, "think", SEP):
                break
            section.text(text)
            section.marker(marker) if marker in delimiters.tokens else section.text(marker)
            last_marker = marker
    except Ended as error:
        section.text("".join(parts))
        if error.by_model:
            out.reasoning.marker()
            out.phase = Phase.CONTENT
            section.play(_read_elements(context), error.by_model)
        else:
            out.reasoning.write(section.written())
        raise
    out.reasoning.write(section.written().removesuffix(CLOSE))


def _is_skipped(context: ParsingContext) -> Generator[Want, str, bool]:
    """Return True if the model answers immediately although the prompt opened the thinking."""
    lexicon = context.lexicon
    elements: Follow = dict.fromkeys(("response", "tools"), context.follow(None, SEP))
    head = context.follow(elements, OPEN)
    return (yield Ahead(head, lexicon.delimiters(), lexicon)) == Ahead.YES


def _read_call(tool: str, context: ParsingContext) -> Routine:
    """Read the arguments of a call, up to its closing tag or the next call."""
    context.calls.begin(tool)
    is_forced = False
    with ArgumentsWriter(context.calls) as arguments:
        while True:
            prefix: list[str] = []
            marker = yield Until(context.lexicon.delimiters(OPEN, CLOSE), prefix.append)
            if "".join(prefix).lstrip().startswith(("argument", "json")):
                context.calls.spoil()  # the token before it is missing
            parts: list[str] = []
            yield Until(context.lexicon.delimiters(SEP), parts.append)
            header = "".join(parts)
            name, attributes = _parse_header(header)
            if _is_broken(header, name, attributes):
                context.calls.spoil()
            if marker == OPEN and name == "argument" and "key" in attributes:
                is_forced |= yield from _read_argument(attributes, arguments, context)
            elif marker == OPEN and name == "json" and not arguments.given:
                is_forced |= yield from _read_body("json", arguments.write_whole, context)
            elif name in ("call", "tools", "message"):
                break
            elif marker == OPEN:
                context.calls.spoil()
    context.calls.close(is_spoiled=is_forced)
    if marker == OPEN and name == "call":
        yield from _read_element(name, attributes, context)


def _is_broken(header: str, name: str, attributes: dict[str, str]) -> bool:
    """Return True if a tag contains a marker, or lacks its type and contains other text."""
    if OPEN in header or CLOSE in header:
        return True
    return "type" not in attributes and _ATTRIBUTE.sub("", header).strip() != name


def _read_argument(
    attributes: dict[str, str], arguments: ArgumentsWriter, context: ParsingContext
) -> Generator[Want, str, bool]:
    types = None
    if "type" in attributes:
        types = STRING if attributes["type"] == "string" else TYPES - STRING
    arguments.begin(attributes["key"], types)
    is_forced = yield from _read_body("argument", arguments.write, context)
    text = arguments.text
    too_many = text.count(SEP) > text.count(OPEN) + text.count(CLOSE)
    is_doubled = text.rstrip().endswith(CLOSE)
    if too_many or is_doubled or holds_next(text, f"{OPEN}argument", CLOSE):
        context.calls.spoil()
    arguments.end()
    return is_forced


def _read_body(name: str, sink: TextSink, context: ParsingContext) -> Generator[Want, str, bool]:
    """Read text and its element's closing tag. Return True if another tag ended the text."""
    lexicon = context.lexicon
    if name in ("argument", "json"):
        closing: Closing = lexicon.remember(
            ("kimi_k3", name), lambda: _find_value_closing(name, context)
        )
        end = yield CallValue(lexicon, closing, sink, context.calls)
    else:
        end = yield Tagged(lexicon, _find_closing(name, context), sink)
    if end not in (DONE, FORCED):
        yield Until(lexicon.delimiters(SEP), ignore)
    return end == FORCED


def _find_closing(name: str, context: ParsingContext) -> Closing:
    """Return the closing tag of an element in which nothing is quoted."""
    ends = {close + name: context.follow(None, SEP) for close in context.lexicon.words(CLOSE)}
    openers = context.lexicon.words(OPEN)
    siblings = ("tools",) if name == "response" else ("tools", "response")
    next_words: Follow = dict.fromkeys(siblings, context.follow(None, SEP))
    return Closing({**ends, **dict.fromkeys(openers, next_words)}, openers)


def _find_value_closing(name: str, context: ParsingContext) -> Closing:
    """Return the tags that may end a value, which may quote tags."""
    opening, closing = (context.lexicon.words(marker)[0] for marker in (OPEN, CLOSE))
    end, call, call_end = f"{closing}{name}", f"{opening}call tool=", f"{closing}call"
    tag: Follow = {NAME: None}
    ends = context.follow({closing: {"call": None}}, SEP)
    nexts = context.follow({opening: tag, closing: tag, "call": context.follow(None, SEP)}, SEP)
    sep = context.lexicon.words(SEP)
    return Closing(
        {end: nexts, call_end: context.follow(_after_call(context), SEP), call: None},
        forced=(call_end,),
        call=call,
        call_ends=(call_end,),
        parameter=f"{opening}argument",
        pairs={end: ends},
        nexts={end: nexts},
        frame=(*sep, call_end, f"{closing}tools", f"{opening}tools"),
    )


def _after_call(context: ParsingContext) -> Follow:
    """List the text that must follow the end of a call inside an unclosed argument."""
    section_end = context.follow({"tools": context.follow({}, SEP)}, CLOSE)
    return {**section_end, **context.follow({"call tool=": None}, OPEN)}


_OPENING = f"{OPEN}think{SEP}"
FORMAT = ToolFormat((), no_calls, MARKERS, framing="", channels=read_channels, opening=_OPENING)
REASONING = ReasoningFormat(
    (), (), framing="", channels=read_channels, inner=MARKERS, opening=_OPENING
)
