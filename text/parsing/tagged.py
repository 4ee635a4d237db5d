"""Values in tags, each up to the closing tag that the rest of the output confirms.

A value may contain its own tags (a file about chat templates does). Therefore a closing tag counts
only if valid text follows: after ``</parameter>`` another parameter or the end of the call, after
that another call or the end of the section. Otherwise the tag is part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from eaglegate.text.parsing.markers import Follow, Lexicon, follows
from eaglegate.text.parsing.output import Calls
from eaglegate.text.parsing.reader import DONE, TextSink

_NAME = re.compile(r"""["']?([^\s"'<>]+)""")
Taken = tuple[str | None, str]
FORCED = "forced"
"""Result for a value that something other than its own closing tag ended."""


@dataclass(frozen=True)
class Closing:
    """Words that may end a value, each with the text that must follow.

    A word in ``implied`` opens or closes something else, so the value ends before it: DONE is sent,
    and the word is left in place. The same holds for ``forced``, with FORCED in place of DONE. Text
    between a word in ``nests`` and a word in ``forced`` is quoted and ends nothing. ``unfinished``
    words lack the rest of their tag, up to ``>``.
    """

    words: Mapping[str, Follow | None]
    implied: Container[str] = ()
    forced: Container[str] = ()
    nests: Container[str] = ()
    unfinished: Mapping[str, str] = field(default_factory=dict)
    """Tags by the words that begin them."""
    unnests: Container[str] = ()
    """Words, besides those in ``forced``, that close a nesting opened by a word in ``nests``."""
    call: str = ""
    """Word that opens a call, if a section may contain several."""
    call_ends: Container[str] = ()
    """Words that close a call."""
    parameter: str = ""
    """Word that opens a value in a call."""
    pairs: Mapping[str, Follow] = field(default_factory=dict)
    """Text after a value's closing tag at the end of a call, by the word of the tag."""
    nexts: Mapping[str, Follow] = field(default_factory=dict)
    """Text after a value's closing tag before the next value, by the word of the tag."""
    frame: tuple[str, ...] = ()
    """Words that may stand between a value and the next call, after its closing tag."""

    @cached_property
    def _behind(self) -> re.Pattern[str]:
        closing = "|".join(
            re.escape(word) + (r"[^<>]{0,130}>" if word in self.unfinished else "")
            for word in sorted(self.pairs, key=len, reverse=True)
        )
        frame = "|".join(map(re.escape, self.frame))
        return re.compile(rf"(?:{closing})?+(?:\s{{0,99}}+(?:{frame}))*+")

    def find_behind(self, text: str, position: int) -> int:
        """Return the position behind the end of a value and its call at ``position``."""
        match = self._behind.match(text, position)
        return match.end() if match else position

    def begins_behind(self, text: str) -> bool:
        """Return True if only the beginning of a call, or of its frame, follows."""
        words = self.call, *self.frame
        return text.startswith(self.call) or any(word.startswith(text) for word in words)


class Tagged:
    """Want for a value up to the closing tag that the rest of the output confirms."""

    def __init__(
        self,
        lexicon: Lexicon,
        closing: Closing,
        sink: TextSink,
        words: Mapping[str, Follow | None] | None = None,
    ) -> None:
        self._words = words = words or closing.words
        """Words that may end this value, by default those of ``closing``."""
        self._delimiters = lexicon.delimiters(*words)
        self._closing = closing
        self._sink = sink
        self._depth = 0
        """Number of nested sections that are open."""
        self.lexicon: Lexicon | None = lexicon
        self._spell = lexicon.spell
        self.tokens: frozenset[str] = frozenset()

    def take(self, text: str, has_more: bool) -> tuple[str | None, str]:
        closing, offset = self._closing, 0
        while True:
            start, end, tag = self._delimiters.find(text, offset, has_more)
            if tag is None:
                return self._write(text, start)
            verdict = follows(text, end, self._words[tag], has_more)
            if verdict is None:
                return self._write(text, start)
            if verdict and tag in closing.nests:
                self._depth += 1
            elif self._depth:
                self._depth -= tag in closing.forced or tag in closing.unnests
            elif verdict:
                self._write(text, start)
                return self._name_end(tag), self._rest(text, start, end, tag)
            offset = end if tag in closing.nests or tag in closing.forced else start + 1

    def plain(self, text: str) -> None:
        """Do nothing: every marker token arrives as a sign."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        """Take text kept back at a cut: an unconfirmed closing tag, or a part of one."""
        start, end, tag = self._delimiters.find(text, 0, has_more=False)
        if tag is None or tag in self._closing.nests or self._depth:
            return None, ""
        return self._name_end(tag), self._rest(text, start, end, tag)

    def _write(self, text: str, end: int) -> tuple[None, str]:
        if end:
            self._sink(self._spell(text[:end]))
        return None, text[end:]

    def _name_end(self, tag: str) -> str:
        if tag in self._closing.forced:
            return FORCED
        if tag in self._closing.implied:
            return DONE
        return self._closing.unfinished.get(tag) or self._spell(tag)

    def _rest(self, text: str, start: int, end: int, tag: str) -> str:
        if tag in self._closing.implied or tag in self._closing.forced:
            return text[start:]
        return text[end:].partition(">")[2] if tag in self._closing.unfinished else text[end:]


class _Mark(Enum):
    """Kind of a tag in text that is held back, outside of any call that opens in the text."""

    END = "end"
    """The value's closing tag and the end of its call, or the end of its call alone."""
    OPEN = "open"
    """Opening of a call."""
    STRAY = "stray"
    """Closing tag that nothing opens, in a place where none can be."""


@dataclass(slots=True)
class _Held:
    """Text held back from the first place on where a call may begin or end in a value."""

    parts: list[str] = field(default_factory=list)
    size: int = 0
    """Number of characters in ``parts``."""
    depth: int = 0
    """Number of calls that are open in the text."""
    marks: list[tuple[_Mark, int, str]] = field(default_factory=list)
    """Tags as (kind, position, tag)."""
    in_value: bool = False
    """True if a parameter of the last open call is not closed."""
    has_end: bool = False
    in_doubt: bool = False
    """True if the first call opens like a call, not like a quotation."""
    fallback: tuple[int, str] | None = None
    """Closing tag in an open call, which ends the value if the opening tag is quoted."""
    closed: tuple[int, str] | None = None
    """End of the value if each call's end in the text was opened in it."""


@dataclass(slots=True)
class _Ends:
    """Ends of calls in a value which nothing in the value opens."""

    last: tuple[int, str] | None = None
    behind: int = 0
    """Position behind the last end."""
    precedes_call: bool = False
    """True if a call directly follows one of the ends."""
    is_doubtful: bool = False
    """True if another end, or a closing tag that is left over, casts doubt on the last."""


class CallValue(Tagged):
    """Want for a value of a call, which other calls may follow.

    Text in the value that looks like the end of its call is either quoted or the end. Only the rest
    of the output shows which, so from there on everything is held back:

    - The value ends at the last end of a call that nothing in the text opens. Ends before it are
      quoted, and so is everything between them. Without another such end the first was meant.
    - If an end before the last is directly followed by a call, the call cannot be trusted, because
      that call's value might hold the last end. ``calls.spoil`` is called.
    - If a call opens and ends in the value and more of the value follows, the call is quoted.
    - If a call opens in the value and the section ends with it, an end is missing: an opening tag
      is quoted, or the model has omitted the value's closing tag. If the tag names an offered tool
      at the beginning of a line, the call cannot be trusted.

    Without offered tools any name counts as an offered tool. At the end of the output the ends of
    all later calls are known, too: then ``calls.settled`` is True.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        closing: Closing,
        sink: TextSink,
        calls: Calls,
        words: Mapping[str, Follow | None] | None = None,
    ) -> None:
        super().__init__(lexicon, closing, sink, words)
        self._calls = calls
        self._text, self._look = "", 0
        self._held: _Held | None = None
        self._last = ""
        """Last character that certainly belongs to the value."""
        self._seen = False
        """True if the value contains text that looks like its own closing tag."""

    def take(self, text: str, has_more: bool) -> Taken:
        self._text, self._look = text, 0
        while True:
            text = self._text
            start, end, tag = self._delimiters.find(text, self._look, has_more)
            verdict = follows(text, end, self._words[tag], has_more) if tag else None
            if tag is None or verdict is None:
                return self._leave(start, has_more)
            self._look = end
            result = self._take_tag(start, tag, verdict, has_more)
            if result is not None:
                return result

    def truncate(self, text: str) -> Taken:
        self._text = text
        buffer = self._held
        if buffer and buffer.has_end and (result := self._settle(is_cut=True)):
            return result
        is_open = buffer is not None and (buffer.depth > 0 or buffer.has_end)
        start, _, tag = self._delimiters.find(text, 0, has_more=True)
        if tag == self._closing.call and not is_open:
            start = len(text)
        self._release(start)
        if tag is None or tag == self._closing.call or is_open:
            return None, ""
        return super().truncate(text[start:])

    def _take_tag(self, start: int, tag: str, verdict: bool, has_more: bool) -> Taken | None:
        closing = self._closing
        if self._is_quoted(tag):
            return None
        if tag in closing.nests:
            if verdict and not self._depth:
                self._mark(_Mark.OPEN, self._look)  # as the call in it
            self._depth += verdict
        elif self._depth:
            self._depth -= tag in closing.forced or tag in closing.unnests
        elif tag == closing.call:
            if verdict:
                self._open_call(start)
        elif tag in closing.call_ends:
            return self._end_call(start, tag, verdict, has_more)
        elif tag in closing.forced:
            has_end = self._held is not None and (self._held.has_end or self._held.closed)
            return self._end_value(start, tag) if verdict and not has_end else None
        elif tag in closing.pairs:
            return self._take_closing(start, tag, verdict, has_more)
        elif verdict and not (self._held and self._held.depth):
            return self._take_next(start, tag)
        return None

    def _is_quoted(self, tag: str) -> bool:
        """Return True for the end of a call inside the open value of a later call."""
        closing, buffer = self._closing, self._held
        if not (buffer and (buffer.depth or self._depth) and closing.parameter):
            return False
        is_closed = tag in closing.pairs
        buffer.in_value = closing.parameter in tag or (buffer.in_value and not is_closed)
        is_end = tag in closing.call_ends or tag in closing.forced or tag in closing.unnests
        return is_end and buffer.has_end and buffer.in_value

    def _take_closing(self, start: int, tag: str, verdict: bool, has_more: bool) -> Taken | None:
        """Take a closing tag of the value's own kind."""
        buffer, text, end = self._held, self._text, self._look
        if buffer and buffer.depth:
            if verdict and not buffer.has_end and not buffer.fallback:
                buffer.fallback = buffer.size + start, tag
            return None
        if follows(text, end, self._closing.pairs[tag], has_more):
            return self._end_value(start, tag)
        if verdict and follows(text, end, self._closing.nexts[tag], has_more):
            return self._take_next(start, tag)
        if verdict:
            return self._end_value(start, tag)
        self._seen = True
        self._mark(_Mark.STRAY, start)
        return None

    def _open_call(self, start: int) -> None:
        in_doubt = self._held is None and self._opens_line(start)
        buffer, position = self._hold(start)
        buffer.in_doubt |= in_doubt
        if not buffer.depth and buffer.has_end:
            buffer.marks.append((_Mark.OPEN, position, ""))
        buffer.depth += 1
        buffer.in_value = False

    def _opens_line(self, start: int) -> bool:
        """Return True if an offered tool's call opens at the beginning of a line."""
        match, names = _NAME.match(self._text, self._look), self._calls.names
        is_offered = not names or (match is not None and match[1] in names)
        return is_offered and (self._text[start - 1 : start] or self._last) == "\n"

    def _end_value(self, start: int, tag: str) -> Taken | None:
        """End the value and its call, if the rest of the output confirms it."""
        if self._calls.settled:
            return self._close(self._position(start), tag)
        buffer, position = self._hold(start)
        buffer.marks.append((_Mark.END, position, tag))
        buffer.has_end = True
        return None

    def _end_call(self, start: int, tag: str, verdict: bool, has_more: bool) -> Taken | None:
        buffer, closing = self._held, self._closing
        if buffer is None or not buffer.depth:
            if verdict and (tag in closing.implied or tag in closing.forced):
                return self._end_value(start, tag)
            self._mark(_Mark.STRAY, start)
            return None
        buffer.depth -= 1
        if buffer.depth or buffer.has_end:
            return None
        if not verdict and not buffer.closed:
            self._release(self._look)
        elif verdict and not buffer.closed and not self._goes_on(has_more):
            buffer.closed = buffer.fallback or (buffer.size + start, tag)
        return None

    def _mark(self, kind: _Mark, start: int) -> None:
        """Record a tag behind the end of a call."""
        if self._held is not None and self._held.has_end:
            self._held.marks.append((kind, self._held.size + start, ""))

    def _goes_on(self, has_more: bool) -> bool:
        """Return True if another call follows."""
        text = self._text[self._look :]
        return bool(text.strip() and follows(text, 0, {self._closing.call: None}, has_more))

    def _position(self, start: int) -> int:
        return start + (self._held.size if self._held else 0)

    def _hold(self, start: int) -> tuple[_Held, int]:
        """Hold the text back from ``start`` on. Return that position in the text held back."""
        if self._held is None:
            if start:
                self._last = self._text[start - 1]
                self._sink(self._spell(self._text[:start]))
            self._held, self._text = _Held(), self._text[start:]
            self._look -= start
            start = 0
        return self._held, self._held.size + start

    def _whole(self, text: str) -> str:
        """Return the text held back and ``text`` after it."""
        return "".join([*self._held.parts, text]) if self._held else text

    def _release(self, end: int) -> None:
        """Write the text held back and the text up to ``end`` as part of the value."""
        if text := self._whole(self._text[:end]):
            self._last = text[-1]
            self._sink(self._spell(text))
        self._text, self._look = self._text[end:], 0
        self._held = None

    def _leave(self, start: int, has_more: bool) -> Taken:
        """Write the text up to ``start``, or hold it back except for its last character."""
        text = self._text
        if self._held is None:
            if start:
                self._last = text[start - 1]
                self._sink(self._spell(text[:start]))
            return None, text[start:]
        if has_more:
            # ``take`` is called at the end of the output only if there is text left for it.
            end = min(start, len(text) - 1)
            self._held.parts.append(text[:end])
            self._held.size += end
            return None, text[end:]
        if result := self._settle():
            return result
        self._release(len(text))
        return None, ""

    def _settle(self, is_cut: bool = False) -> Taken | None:
        """End the value at the end of the output; None if it never ended.

        If the output ``is_cut``, text after a call's end may be the rest of the value.
        """
        buffer = self._held
        assert buffer is not None
        ends = self._find_ends(text := self._whole(self._text))
        end = ends.last
        # Cut behind a call's end: only the beginning of a call's frame, or a call that opened
        # there, shows that the value was over. Other text may be its rest.
        if end and is_cut and not self._closing.begins_behind(text[ends.behind :].lstrip()):
            has_call = any(
                kind is _Mark.OPEN and position >= ends.behind for kind, position, _ in buffer.marks
            )
            end = end if has_call else None
        is_doubtful = ends.is_doubtful
        # Every end was opened in the text: the first place where the text closed counts. A cut
        # output may have lost the end that was meant.
        if end is None and not is_cut:
            end, is_doubtful = buffer.closed, buffer.in_doubt
        if end is None:
            return None
        if is_doubtful:
            self._calls.spoil()
        self._calls.settled = True
        return self._close(*end)

    def _find_ends(self, text: str) -> _Ends:
        """Find the ends of calls that nothing in ``text`` opens, from the tags recorded in it."""
        ends = _Ends()
        for kind, position, tag in self._held.marks if self._held else ():
            if ends.last and position < ends.behind:  # a part of that end
                continue
            is_adjacent = ends.last is not None and not text[ends.behind : position].strip()
            if kind is _Mark.OPEN:
                ends.precedes_call |= is_adjacent
                continue
            ends.is_doubtful = kind is _Mark.STRAY or ends.precedes_call or is_adjacent
            if kind is _Mark.END:
                ends.last = position, tag
                ends.behind = self._closing.find_behind(text, position)
        return ends

    def _take_next(self, start: int, tag: str) -> Taken | None:
        """Take the end of the value before the next one.

        Directly behind the end of a call, a closing tag is left over, and the next value with it.
        """
        if self._held is not None and self._held.has_end:
            ends = self._find_ends(text := self._whole(self._text))
            if not text[ends.behind : self._held.size + start].strip():
                self._mark(_Mark.STRAY, start)
                return None
            if ends.precedes_call:
                self._calls.spoil()
        return self._close(self._position(start), tag)

    def _close(self, place: int, tag: str) -> Taken:
        """End the value at ``place``, counted from the beginning of the text held back."""
        text = self._whole(self._text)
        is_implied = tag in self._closing.implied
        if (self._seen and is_implied) or self._is_interrupted(text, place):
            self._calls.spoil()
        if place:
            self._sink(self._spell(text[:place]))
        return self._name_end(tag), self._rest(text, place, place + len(tag), tag)

    def _is_interrupted(self, text: str, place: int) -> bool:
        """Return True if a parameter opens after the end of a call, without a call before it."""
        marks = self._held.marks if self._held else ()
        end_position = next((position for kind, position, _ in marks if kind is _Mark.END), place)
        if place <= end_position or not self._closing.parameter:
            return False
        opening = text.find(self._closing.parameter, end_position, place)
        return opening >= 0 and text.find(self._closing.call, end_position, opening) < 0
