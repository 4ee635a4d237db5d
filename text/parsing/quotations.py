"""Calls that may be quotations, held back until what follows shows what they are.

A section of calls inside open thinking or inside a code fence is a quotation or meant by what
stands behind it. So is a code fence that an answer begins with: if it is the whole answer, the
calls in it are meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from eaglegate.text.parsing.markers import Delimiters, Follow, Lexicon, follows
from eaglegate.text.parsing.message import ParsingContext
from eaglegate.text.parsing.output import Fence
from eaglegate.text.parsing.reader import Ended, Reader, Routine, Subroutine, Until, Want

_FENCE_LINE = re.compile(r"\s{0,99}(`{3,}|~{3,})[^`~\n]{0,99}\n")
_MAY_BE_FENCE_LINE = re.compile(r"\s{0,99}(?:`{0,2}|~{0,2}|`{3,}[^`\n]{0,99}|~{3,}[^~\n]{0,99})\Z")
_LAST_LINE = re.compile(r"(?:\A|\n) {0,3}(?:`{3,}|~{3,})[ \t]*\s*\Z")


def read_unclosed(
    opener: str, meant: Routine, context: ParsingContext
) -> Generator[Want, str, str]:
    """Thinking that a tool call may have ended; returns the marker behind it.

    Some models forget the end marker before a call. Whether a section of calls inside open thinking
    is quoted or meant only shows behind it, so that it is held back with all that follows: if the
    thinking is closed later on, it was quoted; if the model ends its answer without that, it was
    meant. An output that is cut off in the thinking is thinking, unless it is cut off inside a
    further call directly behind a whole one. ``meant`` reads the section, from behind its opener.
    """
    kept = _Kept(opener, context.tools.closer)
    delimiters = context.lexicon.delimiters(*context.reasoning.ends, *context.tools.markers)
    marker = opener
    try:
        while (marker := (yield Until(delimiters, kept.text))) not in context.reasoning.ends:
            if marker in delimiters.tokens:
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


def is_fenced(marker: str, context: ParsingContext) -> bool:
    """Whether it opens calls where a code fence is open. A single character proves too little."""
    opens = marker in context.tools.openers and len(marker) > 1
    return opens and context.out.content.fence.is_open


def read_fenced(
    opener: str, delimiters: Delimiters, context: ParsingContext, meant: Routine
) -> Subroutine:
    """Read a possible quotation, and return the marker behind it.

    It is one if the fence is closed later. If the model ends its answer without that, it has
    forgotten to close the fence, and the calls are meant. ``meant`` reads from behind the opener.
    """
    kept = _Fenced(opener, context)
    markers = context.lexicon.delimiters(*delimiters.markers, *context.tools.markers)
    try:
        while True:
            marker = yield Until(markers, kept.text)
            if kept.released and marker in delimiters.markers:
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

    def play(self, routine: Routine, by_model: bool) -> None:
        reader = Reader(routine)
        for is_marker, text in self._pieces:
            if is_marker:
                reader.marker(text)
            else:
                reader.text(text)
        reader.end(by_model)


class _Fenced(_Kept):
    """Content, once the fence around it is closed."""

    def __init__(self, opener: str, context: ParsingContext) -> None:
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

    def take_marker(self, delimiters: Delimiters, marker: str) -> None:
        if self.released:
            return
        if marker in delimiters.tokens:
            self.marker(marker)
        else:
            super().text(marker)
        self._close_fence(marker)

    def end(self, meant: Routine, by_model: bool) -> None:
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
        """Text inside the fence."""
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


def read_fenced_answer(
    context: ParsingContext, rest: Callable[[ParsingContext], Routine]
) -> Routine:
    """An answer that is a code fence around calls, and nothing else: then they are meant.

    Models that write Markdown put a call into a fence at times. A quotation has words around it.
    ``rest`` reads an answer to its end.
    """
    head = _find_head(context)
    if not head:
        return
    answer = _FencedAnswer(context.lexicon, head)
    try:
        yield answer
    except Ended as ended:
        _settle(answer, rest, context, ended.by_model)
        raise


def _find_head(context: ParsingContext) -> Follow:
    """Find the beginnings of calls: a marker, or the format's head of calls without one."""
    tools = context.tools
    words: Follow = context.lexicon.remember(
        ("openers", tools.openers),
        lambda: context.follow(None, *(opener for opener in tools.openers if len(opener) > 1)),
    )
    return words | tools.head(context) if tools.head else words


def _settle(
    answer: _FencedAnswer,
    rest: Callable[[ParsingContext], Routine],
    context: ParsingContext,
    by_model: bool,
) -> None:
    if not answer.opening:
        return
    rehearsed = context.rehearse()
    if by_model:
        _play(answer.inside, rest(rehearsed), context.lexicon, by_model)
    meant = _holds_only_calls(rehearsed)
    text = answer.inside if meant else answer.opening + answer.written
    _play(text, rest(context), context.lexicon, by_model)


def _holds_only_calls(read: ParsingContext) -> bool:
    out = read.out
    others = out.content.written or out.reasoning.written or out.calls.truncated
    return out.calls.num > 0 and not others


def _play(text: str, routine: Routine, lexicon: Lexicon, by_model: bool) -> None:
    reader = Reader(routine)
    for piece, marker in lexicon.split(text):
        if piece:
            reader.text(piece)
        if marker:
            reader.marker(marker)
    reader.end(by_model)
