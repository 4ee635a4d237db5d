"""gpt-oss: the harmony format, messages on channels.

    <|channel|>analysis<|message|>The user wants ...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>
    {"city": "Paris"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It rains.<|return|>

Source: openai/harmony docs/format.md and the library itself, which the tests compare with. The
prompt ends with ``<|start|>assistant``, so an answer begins inside a header. The header tells the
kind of the body. With a recipient, anywhere in the header, the body is a call. Otherwise it is
thinking on the analysis channel, and content on any other (a preamble on commentary is meant for
the user). All markers are tokens, and bodies are exact. In a string of a call's JSON, a token that
ends bodies is text, unless the next message or the end of the answer follows it. A recipient
outside ``functions.`` (a built-in tool) is a call by its full name.

One routine reads the whole answer, if gpt-oss is given as tool format, as reasoning format or as
both. Without the tool format a call's body is content. Another tool or reasoning format is read
inside the bodies that are content.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from eaglegate.text.events import Phase
from eaglegate.text.parsing.answer import read_content
from eaglegate.text.parsing.markers import match_beginnings
from eaglegate.text.parsing.message import (
    Looking,
    ParsingContext,
    ReasoningFormat,
    Skipping,
    ToolFormat,
    no_calls,
)
from eaglegate.text.parsing.reader import (
    Ended,
    JsonValue,
    Routine,
    Subroutine,
    TextSink,
    Until,
    Want,
    ignore,
)

START, END, RETURN, CALL = "<|start|>", "<|end|>", "<|return|>", "<|call|>"
CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
MARKERS = (START, END, RETURN, CALL, CHANNEL, MESSAGE, CONSTRAIN)
ENDS = (END, RETURN, CALL)
"""Tokens that end a body. Any other token in a body is text."""
_ROLES = frozenset({"assistant", "user", "system", "developer", "all", "final"})
"""Recipients that are not tools."""
_BREAK = "\n\n"
"""Text between two messages that are content."""
_RECIPIENT = re.compile(r"to=(?:functions\.)?(?P<name>[^\s<]+)")
_ROLE = re.compile(r"\s{0,99}(?:to=|assistant)")
_ROLE_BEGINS = re.compile(r"\s{0,99}(?:to?|a(?:s(?:s(?:i(?:s(?:t(?:a(?:nt?)?)?)?)?)?)?)?)?\Z")
_TO = ("commentary to=", "analysis to=")
_HEADER = re.compile("|".join(_TO))
"""Header of a call after another message, without the tokens that should open it."""
_HEADER_BEGINS = re.compile("|".join((r"\Z", *map(match_beginnings, _TO))))
_STRAY = re.compile(r"[\W\d_]{1,16}\Z")
"""Digits and punctuation without words."""


def read_channels(context: ParsingContext) -> Routine:
    """Read messages one after another, from inside the header of the first."""
    if context.starts_in is Phase.REASONING:
        marker = yield from _read_thinking(context)
    else:
        marker = yield from _read_opening(context)
    while True:
        marker = yield from _read_message(marker, context)


def _read_opening(context: ParsingContext) -> Subroutine:
    """Read up to the first marker. Text that completes no header is content without a header."""
    delimiters = context.lexicon.delimiters(START, CHANNEL, MESSAGE)
    marker = yield Looking(_ROLE, _ROLE_BEGINS, delimiters.tokens)
    if marker == Looking.NO:
        return (yield from _read_content(context))
    return START if marker == Looking.YES else marker


def _read_message(marker: str, context: ParsingContext) -> Subroutine:
    """Read one message. Return the marker that ended its body."""
    delimiters = context.lexicon.delimiters(START, CHANNEL, MESSAGE)
    if marker in ENDS:
        marker = yield from _skip_stray(context)
    while marker not in delimiters.markers:
        marker = yield Until(delimiters, context.out.content.write, stray=ignore)
    channel, recipient = "", None
    if marker != MESSAGE:
        channel, recipient, marker, inline = yield from _read_header(marker, context)
        if marker in ENDS and recipient and context.tools.channels:
            context.calls.begin(recipient)  # the marker before the body is missing
            context.calls.write_json(inline)
            context.calls.close(is_fragile=not inline)
    if marker != MESSAGE:
        return marker
    if recipient and context.tools.channels:
        return (yield from _read_call(recipient, context))
    return (yield from (_read_thinking if channel == "analysis" else _read_content)(context))


def _skip_stray(context: ParsingContext) -> Subroutine:
    """Read up to the marker after a message. A few characters without a word are dropped.

    gpt-oss sometimes writes a number there. Other text is an answer without a header.
    """
    delimiters = context.lexicon.delimiters(START, CHANNEL, MESSAGE)
    marker = yield Looking(_HEADER, _HEADER_BEGINS, delimiters.tokens)
    if marker != Looking.NO:
        return CHANNEL if marker == Looking.YES else marker
    characters: list[str] = []
    marker = yield _Stray(delimiters.tokens, characters.append)
    if marker != Skipping.YES:
        return marker
    try:
        return (yield Until(delimiters, context.out.content.write, stray=ignore))
    except Ended:
        context.out.content.write("".join(characters))
        raise


class _Stray(Skipping):
    """Want that takes stray characters and passes them to a sink."""

    __slots__ = ("_sink",)

    def __init__(self, tokens: frozenset[str], sink: TextSink) -> None:
        super().__init__(_STRAY, _STRAY, tokens)
        self._sink = sink

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        verdict, remainder = super().take(text, has_more)
        if verdict == self.YES:
            self._sink(text)
        return verdict, remainder


def _read_header(
    marker: str, context: ParsingContext
) -> Generator[Want, str, tuple[str, str | None, str, str]]:
    """Read a header. Return the channel, the recipient or None, the end marker, and inline JSON."""
    delimiters = context.lexicon.delimiters(*MARKERS)
    parts: dict[str, list[str]] = {START: [], CHANNEL: [], CONSTRAIN: []}
    while marker in parts:
        parts[marker].append(" ")
        marker = yield Until(delimiters, parts[marker].append)
    channel = "".join(parts[CHANNEL]).split()
    match = _RECIPIENT.search("".join([*parts[START], " ", *parts[CHANNEL]]))
    recipient = match["name"] if match and match["name"] not in _ROLES else None
    text = "".join(text for part in parts.values() for text in part)
    inline = text[text.find("{") :].strip() if "{" in text else ""
    return channel[0] if channel else "", recipient, marker, inline


def _read_call(name: str, context: ParsingContext) -> Subroutine:
    context.out.phase = Phase.TOOL_CALL
    context.calls.begin(name)
    delimiters = context.lexicon.delimiters(*ENDS)
    next_words = context.follow(None, START)
    quotes = context.quotes(dict.fromkeys(ENDS, next_words))
    marker = yield JsonValue(delimiters, context.calls.write_json, True, quotes)
    context.calls.close(is_fragile=not context.calls.written)
    context.out.phase = Phase.CONTENT
    return marker


def _read_thinking(context: ParsingContext) -> Subroutine:
    context.out.phase = Phase.REASONING
    marker = yield Until(context.lexicon.delimiters(*ENDS), context.out.reasoning.write)
    context.out.phase = Phase.CONTENT
    return marker


def _read_content(context: ParsingContext) -> Subroutine:
    context.out.content.separate(_BREAK)
    while (marker := (yield from read_content(context, *ENDS))) not in ENDS:
        pass
    return marker


_OPENING = f"{CHANNEL}analysis{MESSAGE}"
FORMAT = ToolFormat((), no_calls, MARKERS, framing="", channels=read_channels, opening=_OPENING)
REASONING = ReasoningFormat(
    (), (), framing="", channels=read_channels, inner=MARKERS, opening=_OPENING
)
