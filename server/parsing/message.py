"""The grammar of a whole answer: reasoning, content and tool calls in any order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.events import Phase
from server.parsing.markers import Follow, Lexicon, Quotes, Stops
from server.parsing.output import Calls, Fence, NewId, Output, random_id
from server.parsing.reader import Ended, Grammar, Next, Reader, Subgrammar, Until, Want, ignore

CallGrammar = Callable[[str, "Context"], Grammar]
"""Reads what follows the marker that opened it, up to where content begins again."""
MessageGrammar = Callable[["Context"], Grammar]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its thinking.

    While it thinks, only ``ends`` are structure: a tool call quoted there is thinking.
    ``starts`` that are plain text count only as the first text of the answer.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    framing: str = "\n"
    """White space the template writes inside the markers, and after the end marker."""
    label: str = ""
    """What the model writes behind a start marker, before the thinking."""
    inline: bool = False
    """The thinking is delivered as content, with its markers."""
    channels: MessageGrammar | None = None
    """Reads the whole message, where that is more than stretches between markers."""
    inner: tuple[str, ...] = ()
    """The other markers of such a message."""
    answer: tuple[str, str] | None = None
    """What some models write around the rest of the answer behind their thinking."""
    forgets_end: bool = False
    """The model is known to forget the end marker before a tool call."""
    suffixed: Callable[[str], ReasoningFormat] | None = None
    """As in ``ToolFormat``."""
    texts: tuple[str, ...] = ()
    """As in ``ToolFormat``."""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.starts + self.ends + self.inner + (self.answer or ())


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model marks its tool calls."""

    openers: tuple[str, ...]
    """Markers that open a call, or a section of calls, in content."""
    calls: CallGrammar
    inner: tuple[str, ...] = ()
    """The other markers, known only between an opener and its end."""
    framing: str = "\n"
    """White space the template writes around calls, and that is no content."""
    closer: str = ""
    """The marker that closes what an opener opened; without one the end of the answer does."""
    fragment: str = ""
    """A token that plain-text markers are written with."""
    fragmented: ToolFormat | None = None
    """The same format for tokenizers that have it: FRAGMENT stands for the token."""
    leads: tuple[str, ...] = ()
    """Characters that open a call, and stay in the text, as the first of the content."""
    new_id: NewId = random_id
    suffixed: Callable[[str], ToolFormat] | None = None
    """The same format for tokenizers whose markers end with a suffix."""
    texts: tuple[str, ...] = ()
    """Special tokens that are text: markers are written with them."""
    channels: MessageGrammar | None = None
    """Reads the whole message, as in ``Reasoning``."""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.openers + self.inner


def _nothing(_opener: str, _context: Context) -> Grammar:
    yield from ()


NO_REASONING = ReasoningFormat((), (), "")
NO_TOOLS = ToolFormat((), _nothing, framing="")


@dataclass(frozen=True, slots=True)
class Context:
    """What a grammar is given."""

    lexicon: Lexicon
    out: Output
    tools: ToolFormat
    reasoning: ReasoningFormat
    starts_in: Phase
    sound: bool = False
    """A grammar holds the calls: JSON strings are closed, and marker tokens in them quoted."""

    def quotes(self, closing: Mapping[str, Follow | None] = MappingProxyType({})) -> Quotes:
        """Of the marker tokens ``closing`` names, those that may end a forgotten string."""
        may_end = {} if self.sound else closing
        signs = {self.lexicon.sign(m): f for m, f in may_end.items() if self.lexicon.is_token(m)}
        return Quotes(self.lexicon, signs)

    def follow(self, then: Follow | None, *markers: str) -> Follow:
        """Any of ``markers``, as token or text, and ``then``."""
        return dict.fromkeys(self.lexicon.words(*markers), then)

    @property
    def calls(self) -> Calls:
        return self.out.calls


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
    while True:
        yield from read_content(context)


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
    while _is_fenced(marker, context):
        marker = yield from _read_fenced(marker, stops, context)
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


def _is_fenced(marker: str, context: Context) -> bool:
    """Whether it opens calls where a code fence is open."""
    opens = marker in context.tools.openers and context.lexicon.is_token(marker)
    return opens and context.out.content.fence.is_open


def _read_fenced(opener: str, stops: Stops, context: Context) -> Subgrammar:
    """What may be a quotation: returns the marker behind it.

    It is one if the fence is closed later. If the model ends its answer without that, it has
    forgotten to close the fence, and the calls are meant.
    """
    kept = _Fenced(opener, context)
    markers = context.lexicon.stops(*stops.markers, *context.tools.markers)
    try:
        while True:
            marker = yield Until(markers, kept.text)
            if kept.released and marker in stops.markers:
                return marker
            kept.take_marker(markers, marker)
    except Ended as ended:
        kept.end(ended.by_model)
        raise


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


def read_unclosed(opener: str, meant: Grammar, context: Context) -> Generator[Want, str, str]:
    """Thinking that a tool call may have ended; returns the marker behind it.

    Some models forget the end marker before a call. Whether a section of calls inside open thinking
    is quoted or meant only shows behind it, so that it is held back with all that follows: if the
    thinking is closed later on, it was quoted; if the model ends its answer without that, it was
    meant. An output that is cut off in the thinking is thinking, unless it is cut off inside a
    further call directly behind a whole one. ``meant`` reads the section, from behind its opener.
    """
    kept = _Kept(opener, context.tools.closer)
    stops = context.lexicon.stops(*context.reasoning.ends, *context.tools.markers)
    marker = opener
    try:
        while (marker := (yield Until(stops, kept.text))) not in context.reasoning.ends:
            if marker in stops.tokens:
                kept.marker(marker)
            else:
                kept.text(marker)
    except Ended as ended:
        if ended.by_model or kept.in_a_row:
            kept.play(meant, ended.by_model)
        else:
            context.out.reasoning.write(kept.written())
        raise
    context.out.reasoning.write(kept.written())
    return marker


def _read_meant_content(opener: str, context: Context) -> Grammar:
    yield from _read_calls(opener, context)
    while True:
        yield from read_content(context)


class _Kept:
    """Markers and text in turn."""

    def __init__(self, opener: str, closer: str) -> None:
        self._opener = opener
        self._closer = closer
        self._pieces: list[tuple[bool, str]] = []
        self._is_open, self._num_closed, self._interrupted = True, 0, False

    @property
    def in_a_row(self) -> bool:
        """Whether whole sections and the beginning of another follow one another directly."""
        return self._is_open and self._num_closed > 0 and not self._interrupted

    def text(self, text: str) -> None:
        self._pieces.append((False, text))
        if not self._is_open and text.strip():
            self._interrupted = True

    def marker(self, marker: str) -> None:
        self._pieces.append((True, marker))
        if marker == self._closer:
            self._num_closed += self._is_open
            self._is_open = False
        else:
            self._is_open = True

    def written(self) -> str:
        return self._opener + "".join(text for _, text in self._pieces)

    def play(self, grammar: Grammar, by_model: bool) -> None:
        reader = Reader(grammar)
        for is_marker, text in self._pieces:
            if is_marker:
                reader.marker(text)
            else:
                reader.text(text)
        reader.end(by_model)


class _Fenced(_Kept):
    """Content, once the fence around it is closed."""

    def __init__(self, opener: str, context: Context) -> None:
        super().__init__(opener, context.tools.closer)
        self._context = context
        self._content = context.out.content
        self._fence = self._content.fence.copy()
        self._fence.write(opener)
        self.released = False

    def text(self, text: str) -> None:
        if self.released:
            self._content.write(text)
            return
        super().text(text)
        self._close_fence(text)

    def take_marker(self, stops: Stops, marker: str) -> None:
        if self.released:
            return
        if marker in stops.tokens:
            self.marker(marker)
        else:
            super().text(marker)
        self._close_fence(marker)

    def end(self, by_model: bool) -> None:
        self._fence.end_line()
        if self.released:
            return
        if by_model and self._fence.is_open:
            self._content.fence = Fence()
            self.play(_read_meant_content(self._opener, self._context), by_model)
        else:
            self._content.write(self.written())

    def _close_fence(self, text: str) -> None:
        self._fence.write(text)
        if not self._fence.is_open:
            self.released = True
            self._content.write(self.written())
