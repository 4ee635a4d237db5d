"""The grammar of a whole answer: reasoning, content and tool calls in any order."""

from __future__ import annotations

from collections.abc import Generator

from engine.events import Phase
from server.parsing.markers import Stops
from server.parsing.message import Context
from server.parsing.quotations import is_fenced, read_fenced, read_fenced_answer, read_unclosed
from server.parsing.reader import Ended, Grammar, Next, Until, Want, ignore


def read_message(context: Context) -> Grammar:
    """Reads an answer to its end."""
    whole = context.tools.channels or context.reasoning.channels or _read_parts
    try:
        yield from whole(context)
    except Ended as ended:
        _finish(context, ended.by_model)


def _read_parts(context: Context) -> Grammar:
    if context.starts_in is Phase.REASONING and context.reasoning.ends:
        yield from _read_reasoning(context)
    while True:
        if not (context.out.content.written or context.calls.num):
            yield from read_fenced_answer(context, _read_rest)
        yield from read_content(context)


def _read_rest(context: Context) -> Grammar:
    while True:
        yield from read_content(context)


def _read_reasoning(context: Context, labelled: bool = False) -> Grammar:
    """Up to an end marker. A second start marker says nothing new when it comes first."""
    out, reasoning = context.out, context.reasoning
    thinking = out.content if reasoning.inline else out.reasoning
    if reasoning.inline:
        thinking.write(reasoning.starts[0])
    out.phase = Phase.REASONING
    out.reasoning.label = reasoning.label if labelled else ""
    calls = _sure_openers(context) if reasoning.forgets_end else ()
    stops = context.lexicon.stops(*reasoning.starts, *reasoning.ends, *calls)
    begun = False
    while (marker := (yield Until(stops, thinking.write))) not in reasoning.ends:
        if marker in calls:
            marker = yield from read_unclosed(marker, _read_meant(marker, context), context)
            if marker:
                break
        elif begun or out.reasoning.written:
            thinking.write(marker)
        begun = True
    if reasoning.inline:
        thinking.write(marker)
    out.reasoning.marker()
    out.phase = Phase.CONTENT
    out.content.lead = reasoning.framing


def _sure_openers(context: Context) -> tuple[str, ...]:
    """Openers that are tokens: the same characters as text are a quotation."""
    return tuple(filter(context.lexicon.is_token, context.tools.openers))


def _read_meant(opener: str, context: Context) -> Grammar:
    """Reads the calls that ended the thinking."""
    context.out.reasoning.marker()
    yield from _read_calls(opener, context)
    yield from _read_rest(context)


def read_content(context: Context, *ends: str) -> Generator[Want, str, str]:
    """Up to the next marker, and what that marker opens; returns the marker.

    A stray marker token is no content, except in a body that only ``ends`` end.
    """
    out, reasoning, tools = context.out, context.reasoning, context.tools
    frame = reasoning.answer or ()
    stops = context.lexicon.stops(*tools.openers, *reasoning.starts, *ends, *frame)
    marker = ""
    if tools.leads and not out.content.written:
        marker = yield Next(stops, out.content.write, keep=None)
    if marker not in stops.markers and marker not in tools.leads:
        marker = yield Until(stops, out.content.write, stray=None if ends else ignore)
    while is_fenced(marker, context):
        meant = _read_meant_content(marker, context)
        marker = yield from read_fenced(marker, stops, context, meant)
    if marker in frame:
        marker = yield from _read_frame(marker, stops, context)
    if marker in tools.openers or marker in tools.leads:
        yield from _read_calls(marker, context)
    elif marker in reasoning.starts:
        if out.content.written and marker not in stops.tokens:
            out.content.write(marker)
        else:
            yield from _read_reasoning(context, labelled=True)
    return marker


def _read_frame(marker: str, stops: Stops, context: Context) -> Generator[Want, str, str]:
    """The frame around the answer: it begins with one, or ends with the other; else it is text."""
    content = context.out.content
    opening = context.reasoning.answer[0] if context.reasoning.answer else ""
    if marker == opening and not content.written:
        context.out.framed = True
        content.lead = context.reasoning.framing
        return ""
    if not context.out.framed or marker == opening:
        content.write(marker)
        return ""
    content.marker()
    blank: list[str] = []
    following = yield Next(stops, blank.append, keep=None)
    if following in stops.markers:
        return following
    content.unmark(marker + "".join(blank))
    return ""


def _read_calls(opener: str, context: Context) -> Grammar:
    out, tools = context.out, context.tools
    if opener in tools.openers:
        out.content.marker()
    out.phase = Phase.TOOL_CALL
    out.content.lead = tools.framing
    yield from tools.calls(opener, context)
    out.phase = Phase.CONTENT


def _finish(context: Context, by_model: bool) -> None:
    out = context.out
    if out.calls.open:
        out.calls.end(by_model)
    out.reasoning.end()
    out.content.end()


def _read_meant_content(opener: str, context: Context) -> Grammar:
    yield from _read_calls(opener, context)
    yield from _read_rest(context)
