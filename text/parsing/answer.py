"""The routine that reads a whole answer, and the parser built on it.

Reasoning, content and tool calls come in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eaglegate.text.events import Phase
from eaglegate.text.parsing.fold import Emitter
from eaglegate.text.parsing.markers import Delimiters, Lexicon
from eaglegate.text.parsing.message import NO_TOOLS, ParsingContext, ReasoningFormat, ToolFormat
from eaglegate.text.parsing.output import Calls, NewId, Output
from eaglegate.text.parsing.parser import Parser, TextReader, Verbatim
from eaglegate.text.parsing.quotations import (
    is_fenced,
    read_fenced,
    read_fenced_answer,
    read_unclosed,
)
from eaglegate.text.parsing.reader import Ended, Next, Reader, Routine, Until, Want
from eaglegate.text.parsing.registry import reasoning_format, tool_format
from eaglegate.text.parsing.stop import StopText
from eaglegate.text.parsing.tools import OfferedTools
from eaglegate.text.parsing.vocabulary import Vocabulary


def read_message(context: ParsingContext) -> Routine:
    """Read an answer to its end."""
    routine = context.tools.channels or context.reasoning.channels or _read_parts
    try:
        yield from routine(context)
    except Ended as error:
        _finish(context, error.by_model)


def _read_parts(context: ParsingContext) -> Routine:
    if context.starts_in is Phase.REASONING and context.reasoning.ends:
        yield from _read_reasoning(context)
    while True:
        if not (context.out.content.written or context.calls.num):
            yield from read_fenced_answer(context, _read_rest)
        yield from read_content(context)


def _read_rest(context: ParsingContext) -> Routine:
    while True:
        yield from read_content(context)


def _read_reasoning(context: ParsingContext, is_labelled: bool = False) -> Routine:
    """Read thinking up to an end marker. A repeated start marker at its beginning is dropped."""
    out, reasoning = context.out, context.reasoning
    thinking = out.content if reasoning.inline else out.reasoning
    if reasoning.inline:
        thinking.write(reasoning.starts[0])
    out.phase = Phase.REASONING
    out.reasoning.label = reasoning.label if is_labelled else ""
    calls = _token_openers(context) if reasoning.forgets_end else ()
    delimiters = context.lexicon.delimiters(*reasoning.starts, *reasoning.ends, *calls)
    has_begun = False
    while (marker := (yield Until(delimiters, thinking.write))) not in reasoning.ends:
        if marker in calls:
            marker = yield from read_unclosed(marker, _read_meant(marker, context), context)
            if marker:
                break
        elif has_begun or out.reasoning.written:
            thinking.write(marker)
        has_begun = True
    if reasoning.inline:
        thinking.write(marker)
    out.framed |= reasoning.answer is not None and marker == reasoning.answer[0]
    out.reasoning.marker()
    out.phase = Phase.CONTENT
    out.content.lead = reasoning.framing


def _token_openers(context: ParsingContext) -> tuple[str, ...]:
    """Return the openers that are tokens. The same characters as plain text are a quotation."""
    tools = context.tools
    openers = tuple(opener for opener in tools.openers if not context.lexicon.is_text(opener))
    return openers + tools.ends_thinking


def _read_meant(opener: str, context: ParsingContext) -> Routine:
    """Read the calls that ended the thinking."""
    context.out.reasoning.marker()
    yield from _read_calls(opener, context)
    yield from _read_rest(context)


def read_content(context: ParsingContext, *ends: str) -> Generator[Want, str, str]:
    """Read content up to the next marker, and the call or thinking that it opens.

    Returns the marker. A stray marker token is dropped, except in a body that only ``ends`` end.
    """
    out, reasoning, tools = context.out, context.reasoning, context.tools
    frame = reasoning.answer or ()
    delimiters = context.lexicon.delimiters(*tools.openers, *reasoning.starts, *ends, *frame)
    marker = ""
    if tools.leads and not out.content.written:
        marker = yield Next(delimiters, out.content.write, keep=None)
    if marker not in delimiters.markers and marker not in tools.leads:
        marker = yield Until(delimiters, out.content.write, stray=None if ends else context.stray)
    while is_fenced(marker, context):
        routine = _read_meant_content(marker, context)
        marker = yield from read_fenced(marker, delimiters, context, routine)
    if marker in frame:
        marker = yield from _read_frame(marker, delimiters, context)
    if marker in tools.openers or marker in tools.leads:
        yield from _read_calls(marker, context)
    elif marker in reasoning.starts:
        if out.content.written and marker not in delimiters.tokens:
            out.content.write(marker)
        else:
            yield from _read_reasoning(context, is_labelled=True)
    return marker


def _read_frame(
    marker: str, delimiters: Delimiters, context: ParsingContext
) -> Generator[Want, str, str]:
    """Read a marker of the frame around the answer. Elsewhere the marker is text."""
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
    blanks: list[str] = []
    next_marker = yield Next(delimiters, blanks.append, keep=None)
    if next_marker in delimiters.markers:
        return next_marker
    content.unmark(marker + "".join(blanks))
    return ""


def _read_calls(opener: str, context: ParsingContext) -> Routine:
    out, tools = context.out, context.tools
    if opener in tools.openers:
        out.content.marker()
    out.phase = Phase.TOOL_CALL
    out.content.lead = tools.framing
    yield from tools.calls(opener, context)
    out.phase = Phase.CONTENT


def _finish(context: ParsingContext, by_model: bool) -> None:
    out = context.out
    if out.calls.open:
        out.calls.end(by_model)
    out.reasoning.end()
    out.content.end()


def _read_meant_content(opener: str, context: ParsingContext) -> Routine:
    yield from _read_calls(opener, context)
    yield from _read_rest(context)


def make_parser(
    vocabulary: Vocabulary,
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = (),
    starts_in: Phase = Phase.CONTENT,
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    parallel: bool = True,
    skip_special_tokens: bool = True,
    new_id: NewId | None = None,
    custom: Collection[str] = (),
    is_sound: bool = False,
    may_spell: bool = False,
    repairs: bool = True,
) -> Parser:
    """Make a parser for one answer, by the names of its formats. Raises ``UnknownParser``.

    ``tools`` are the offered tools, as the API writes them. None means that they are not known,
    so that no call counts as unknown. The tools named in ``custom`` take plain text. Without
    ``parallel`` only the first call is delivered. ``is_sound`` and ``may_spell`` describe calls
    that a grammar constrains: with ``is_sound`` they are valid JSON, with ``may_spell`` any tokens
    may write a marker. With ``repairs`` arguments are repaired where that is safe.
    """
    lexicon = vocabulary.spelled if may_spell else vocabulary.lexicon
    names = tool_parser, reasoning_parser
    forms: AnswerForms = lexicon.remember(
        ("forms", names, skip_special_tokens),
        lambda: _fit_forms(vocabulary, lexicon, *names, skip_special_tokens),
    )
    out = Emitter(forms.fragment)
    offered_tools = OfferedTools(tools)
    calls = Calls(out, offered_tools, new_id or forms.tools.new_id, parallel, custom, repairs)
    output = Output(out, calls, forms.reasoning.framing, forms.trail)
    context = ParsingContext(lexicon, output, forms.tools, forms.reasoning, starts_in, is_sound)
    reads = tool_parser or reasoning_parser
    reader: TextReader = Reader(read_message(context)) if reads else Verbatim(out)
    return Parser(
        forms.structure,
        vocabulary.decoder(),
        reader,
        output,
        StopText(stop, reader.text, include_stop) if stop else None,
        bool(stop) or forms.thinks_in_text,
    )


@dataclass(frozen=True, slots=True)
class AnswerForms:
    """Parts that all answers in the same formats share, in the form of one vocabulary."""

    tools: ToolFormat
    fragment: str
    """Token that FRAGMENT stands for."""
    reasoning: ReasoningFormat
    trail: str
    """White space at the end of the content that is not part of it."""
    structure: Mapping[int, str | None]
    """Token ids that are not text; see ``Parser``."""
    thinks_in_text: bool
    """True if plain text may start or end the thinking."""


def _fit_forms(
    vocabulary: Vocabulary,
    lexicon: Lexicon,
    tool_parser: str | None,
    reasoning_parser: str | None,
    skip_special_tokens: bool,
) -> AnswerForms:
    tools, fragment = _tool_form(tool_parser, vocabulary)
    reasoning = fit_reasoning(reasoning_parser, vocabulary)
    thinking = reasoning.markers + (tools.markers if tools.channels else ())
    structure = vocabulary.structure(
        tools.markers + thinking, fragment, skip_special_tokens, tools.texts + reasoning.texts
    )
    return AnswerForms(
        tools,
        fragment,
        reasoning,
        tools.framing or (reasoning.framing if reasoning.answer else ""),
        structure,
        lexicon.delimiters(*thinking).pattern is not None,
    )


def fit_reasoning(name: str | None, vocabulary: Vocabulary) -> ReasoningFormat:
    """Return the reasoning format in the form of this vocabulary. Raises ``UnknownParser``."""
    form = reasoning_format(name)
    if form.untokened and form.starts[0] not in vocabulary.ids:
        return form.untokened
    return form.suffixed(vocabulary.suffix) if form.suffixed and vocabulary.suffix else form


def _tool_form(name: str | None, vocabulary: Vocabulary) -> tuple[ToolFormat, str]:
    """Return the format in the form of this vocabulary, and the token that FRAGMENT stands for."""
    form = tool_format(name) if name else NO_TOOLS
    if form.suffixed and vocabulary.suffix:
        form = form.suffixed(vocabulary.suffix)
    fragment = form.fragment if form.fragment in vocabulary.ids else ""
    return form.fragmented if fragment and form.fragmented else form, fragment
