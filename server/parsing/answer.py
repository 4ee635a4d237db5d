"""The grammar of a whole answer: reasoning, content and tool calls in any order.

Calls that may be quotations are held back until what follows shows what they are. A section of
calls inside open thinking or inside a code fence is one or the other by what stands behind it. So
is a code fence that an answer begins with: if it is the whole answer, the calls in it are meant.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from engine.events import Phase
from server.parsing.markers import Follow, Lexicon, Stops, follows
from server.parsing.message import Context
from server.parsing.output import Fence
from server.parsing.reader import Ended, Grammar, Next, Reader, Subgrammar, Until, Want, ignore

_FENCE_LINE = re.compile(r"\s{0,99}(`{3,}|~{3,})[^`~\n]{0,99}\n")
_MAY_BE_FENCE_LINE = re.compile(r"\s{0,99}(?:`{0,2}|~{0,2}|`{3,}[^`\n]{0,99}|~{3,}[^~\n]{0,99})\Z")
_LAST_LINE = re.compile(r"(?:\A|\n) {0,3}(?:`{3,}|~{3,})[ \t]*\s*\Z")


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
            yield from _read_fenced_answer(context)
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
            marker = yield from _read_unclosed(marker, _read_meant(marker, context), context)
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
    while _is_fenced(marker, context):
        meant = _read_meant_content(marker, context)
        marker = yield from _read_fenced(marker, stops, context, meant)
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


def _read_unclosed(opener: str, meant: Grammar, context: Context) -> Generator[Want, str, str]:
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


def _is_fenced(marker: str, context: Context) -> bool:
    """Whether it opens calls where a code fence is open. A single character proves too little."""
    opens = marker in context.tools.openers and len(marker) > 1
    return opens and context.out.content.fence.is_open


def _read_fenced(opener: str, stops: Stops, context: Context, meant: Grammar) -> Subgrammar:
    """What may be a quotation: returns the marker behind it.

    It is one if the fence is closed later. If the model ends its answer without that, it has
    forgotten to close the fence, and the calls are meant. ``meant`` reads from behind the opener.
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
        kept.end(meant, ended.by_model)
        raise


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

    def end(self, meant: Grammar, by_model: bool) -> None:
        self._fence.end_line()
        if self.released:
            return
        if by_model and self._fence.is_open:
            self._content.fence = Fence()
            self.play(meant, by_model)
        else:
            self._content.write(self.written())

    def _close_fence(self, text: str) -> None:
        self._fence.write(text)
        if not self._fence.is_open:
            self.released = True
            self._content.write(self.written())


class _FencedAnswer:
    """An answer that is a code fence, and in it what ``head`` says: NO at what cannot be one.

    NO takes nothing. An answer that ends without it is held here.
    """

    NO = "no"
    tokens: frozenset[str] = frozenset()

    def __init__(self, lexicon: Lexicon, head: Follow) -> None:
        self.lexicon: Lexicon | None = lexicon
        self._head = head
        self._fence = Fence()
        self._parts: list[str] = []
        self.opening = ""
        """The line that opens the fence."""

    @property
    def written(self) -> str:
        """All of it but the opening line."""
        return "".join(self._parts)

    @property
    def inside(self) -> str:
        """What stands in the fence."""
        return _LAST_LINE.sub("", self.written)

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if not self.opening:
            line = _FENCE_LINE.match(text)
            if line is None:
                undecided = more and _MAY_BE_FENCE_LINE.match(text)
                return (None if undecided else self.NO), text
            verdict = follows(text, line.end(), self._head, more)
            if not verdict or not more:
                return (None if verdict is None else self.NO), text
            self.opening, text = text[: line.end()], text[line.end() :]
            self._fence.write(self.opening)
        return self._keep(text)

    def _keep(self, text: str) -> tuple[str | None, str]:
        was_open = self._fence.is_open
        self._parts.append(text)
        self._fence.write(text)
        if self._fence.is_open or not (text.strip() if not was_open else self._goes_on()):
            return None, ""
        return self.NO, self.opening + self.written

    def _goes_on(self) -> bool:
        """Whether something follows the line that has closed the fence."""
        return _LAST_LINE.search(self.written) is None

    def plain(self, text: str) -> None:
        """Every marker token comes as a sign."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


def _read_fenced_answer(context: Context) -> Grammar:
    """An answer that is a code fence around calls, and nothing else: then they are meant.

    Models that write Markdown put a call into a fence at times. A quotation has words around it.
    """
    head = _find_head(context)
    if not head:
        return
    answer = _FencedAnswer(context.lexicon, head)
    try:
        yield answer
    except Ended as ended:
        _settle(answer, context, ended.by_model)
        raise


def _find_head(context: Context) -> Follow:
    """What calls begin with: a marker, or by what the format says of those without one."""
    tools = context.tools
    words = context.follow(None, *(opener for opener in tools.openers if len(opener) > 1))
    return words | (tools.head(context) if tools.head else {})


def _settle(answer: _FencedAnswer, context: Context, by_model: bool) -> None:
    if not answer.opening:
        return
    rehearsed = context.rehearse()
    if by_model:
        _play(answer.inside, _read_rest(rehearsed), context.lexicon, by_model)
    meant = _holds_only_calls(rehearsed)
    text = answer.inside if meant else answer.opening + answer.written
    _play(text, _read_rest(context), context.lexicon, by_model)


def _holds_only_calls(read: Context) -> bool:
    out = read.out
    others = out.content.written or out.reasoning.written or out.calls.truncated
    return out.calls.num > 0 and not others


def _play(text: str, grammar: Grammar, lexicon: Lexicon, by_model: bool) -> None:
    reader = Reader(grammar)
    for piece, marker in lexicon.split(text):
        if piece:
            reader.text(piece)
        if marker:
            reader.marker(marker)
    reader.end(by_model)
