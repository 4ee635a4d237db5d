"""Calls that may be quotations, held back until the text after them decides.

A section of calls inside open thinking or a code fence may be quoted or meant, which only the text
after it shows. The same holds for a code fence at the beginning of an answer: if it is the whole
answer, the calls in it are meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from eaglegate.text.parsing.markers import FRAGMENT, Delimiters, Follow, Lexicon, follows
from eaglegate.text.parsing.message import ParsingContext
from eaglegate.text.parsing.output import Fence
from eaglegate.text.parsing.reader import Ended, Reader, Routine, Subroutine, Until, Want

_FENCE_LINE = re.compile(r"\s{0,99}(`{3,}|~{3,})[^`~\n]{0,99}\n")
_MAY_BE_FENCE_LINE = re.compile(r"\s{0,99}(?:`{0,2}|~{0,2}|`{3,}[^`\n]{0,99}|~{3,}[^~\n]{0,99})\Z")
_LAST_LINE = re.compile(r"(?:\A|\n) {0,3}(?:`{3,}|~{3,})[ \t]*\s*\Z")


def read_unclosed(
    opener: str, routine: Routine, context: ParsingContext
) -> Generator[Want, str, str]:
    """Read thinking that a tool call may have ended, and return the marker after it.

    Some models omit the end marker before a call. Only later text shows if a section of calls
    inside open thinking is quoted or meant, so the section and all text after it are held back. If
    the thinking is closed later, the section was quoted. If the model ends its answer without
    closing the thinking, the section was meant. If the output is cut off in the thinking, all of it
    is thinking, unless it is cut off inside another call directly after a complete one. ``routine``
    reads the section from after its opener.
    """
    section = Kept(opener, context.tools.closer)
    delimiters = context.lexicon.delimiters(*context.reasoning.ends, *context.tools.markers)
    marker = opener
    try:
        while (marker := (yield Until(delimiters, section.text))) not in context.reasoning.ends:
            if marker in delimiters.tokens:
                section.marker(marker)
            else:
                section.tag(marker)
    except Ended as error:
        if error.by_model or section.in_a_row:
            section.play(routine, error.by_model)
        else:
            context.out.reasoning.write(section.written())
        raise
    context.out.reasoning.write(section.written())
    return marker


def is_fenced(marker: str, context: ParsingContext) -> bool:
    """Return True if a marker longer than one character opens calls inside a code fence."""
    is_opener = marker in context.tools.openers and len(marker) > 1
    return is_opener and context.out.content.fence.is_open


def read_fenced(
    opener: str, delimiters: Delimiters, context: ParsingContext, routine: Routine
) -> Subroutine:
    """Read a possible quotation, and return the marker after it.

    If the fence is closed later, the calls are quoted. If the model ends its answer without closing
    the fence, it has forgotten to, and the calls are meant. ``routine`` reads from after the
    opener.
    """
    quotation = _Fenced(opener, context)
    markers = context.lexicon.delimiters(*delimiters.markers, *context.tools.markers)
    try:
        while True:
            marker = yield Until(markers, quotation.text)
            if quotation.released and marker in delimiters.markers:
                return marker
            quotation.take_marker(markers, marker)
    except Ended as error:
        quotation.end(routine, error.by_model)
        raise


class Kept:
    """Recording of markers and text, which a routine can read later."""

    def __init__(self, opener: str = "", closer: str = "") -> None:
        self._opener = opener
        self._closer = closer
        self._pieces: list[tuple[bool, str]] = []
        self._is_open, self._num_closed, self._interrupted = True, 0, False

    @property
    def in_a_row(self) -> bool:
        """True if complete sections and the beginning of another follow each other directly."""
        return self._is_open and self._num_closed > 0 and not self._interrupted

    def text(self, text: str) -> None:
        self._pieces.append((False, text))
        if not self._is_open and text.strip():
            self._interrupted = True

    def marker(self, marker: str) -> None:
        self._pieces.append((True, marker))
        self._change(marker)

    def tag(self, tag: str) -> None:
        """Take a marker of plain text, which opens or closes a section if a token is part of it."""
        if FRAGMENT in tag:
            self._pieces.append((False, tag))
            self._change(tag)
        else:
            self.text(tag)

    def _change(self, marker: str) -> None:
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


class _Fenced(Kept):
    """Recording that becomes content when the fence around it is closed."""

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

    def end(self, routine: Routine, by_model: bool) -> None:
        self._fence.end_line()
        if self.released:
            return
        if by_model and self._fence.is_open:
            self._content.fence = Fence()
            self.play(routine, by_model)
        else:
            self._content.write(self.written())

    def _close_fence(self, text: str) -> None:
        self._fence.write(text)
        if not self._fence.is_open:
            self.released = True
            self._content.write(self.written())


class _FencedAnswer:
    """Want for an answer that is a code fence beginning with ``head``.

    Ends with NO, without taking anything, when the answer is something else. Otherwise it holds
    the whole answer.
    """

    NO = "no"
    tokens: frozenset[str] = frozenset()

    def __init__(self, lexicon: Lexicon, head: Follow) -> None:
        self.lexicon: Lexicon | None = lexicon
        self._head = head
        self._fence = Fence()
        self._parts: list[str] = []
        self.opening = ""
        """Line that opens the fence."""

    @property
    def written(self) -> str:
        """Answer so far, without the opening line."""
        return "".join(self._parts)

    @property
    def inside(self) -> str:
        """Text inside the fence."""
        return _LAST_LINE.sub("", self.written)

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        if not self.opening:
            line = _FENCE_LINE.match(text)
            if line is None:
                is_undecided = has_more and _MAY_BE_FENCE_LINE.match(text)
                return (None if is_undecided else self.NO), text
            verdict = follows(text, line.end(), self._head, has_more)
            if not verdict or not has_more:
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
        """Return True if text follows the line that closed the fence."""
        return _LAST_LINE.search(self.written) is None

    def plain(self, text: str) -> None:
        """Do nothing: every marker token arrives as a sign."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


def read_fenced_answer(
    context: ParsingContext, read_answer: Callable[[ParsingContext], Routine]
) -> Routine:
    """Read an answer that is nothing but a code fence around calls, which are then meant.

    Models that write Markdown sometimes put a call into a fence. A quotation has words around it.
    ``read_answer`` reads an answer to its end.
    """
    head = _find_head(context)
    if not head:
        return
    answer = _FencedAnswer(context.lexicon, head)
    try:
        yield answer
    except Ended as error:
        _settle(answer, read_answer, context, error.by_model)
        raise


def _find_head(context: ParsingContext) -> Follow:
    """Return the beginnings of calls: a marker, or the format's words for calls without one."""
    tools = context.tools
    words: Follow = context.lexicon.remember(
        ("openers", tools.openers),
        lambda: context.follow(None, *(opener for opener in tools.openers if len(opener) > 1)),
    )
    return words | tools.head(context) if tools.head else words


def _settle(
    answer: _FencedAnswer,
    read_answer: Callable[[ParsingContext], Routine],
    context: ParsingContext,
    by_model: bool,
) -> None:
    if not answer.opening:
        return
    rehearsal = context.rehearse()
    if by_model:
        _play(answer.inside, read_answer(rehearsal), context.lexicon, by_model)
    is_call = _holds_only_calls(rehearsal)
    text = answer.inside if is_call else answer.opening + answer.written
    _play(text, read_answer(context), context.lexicon, by_model)


def _holds_only_calls(context: ParsingContext) -> bool:
    out = context.out
    has_text = out.content.written or out.reasoning.written or out.calls.truncated
    return out.calls.num > 0 and not has_text


def _play(text: str, routine: Routine, lexicon: Lexicon, by_model: bool) -> None:
    reader = Reader(routine)
    for piece, marker in lexicon.split(text):
        if piece:
            reader.text(piece)
        if marker:
            reader.marker(marker)
    reader.end(by_model)
