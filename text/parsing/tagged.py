"""Values in tags, each up to the closing tag that the rest of the output confirms.

A value may contain its own tags (a file about chat templates does). Therefore a closing tag counts
only if valid text follows: after ``</parameter>`` another parameter or the end of the call, after
that another call or the end of the section. Otherwise the tag is part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from eaglegate.text.parsing.markers import Follow, Lexicon, follows
from eaglegate.text.parsing.reader import DONE, TextSink

_NAME = re.compile(r"""["']?([^\s"'<>]+)""")
Taken = tuple[str | None, str]
FORCED = "forced"
"""Result for a value that something other than its own closing tag ended."""


@dataclass(frozen=True, slots=True)
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

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        closing, look = self._closing, 0
        while True:
            start, after, tag = self._delimiters.find(text, look, more)
            if tag is None:
                return self._write(text, start)
            verdict = follows(text, after, self._words[tag], more)
            if verdict is None:
                return self._write(text, start)
            if verdict and tag in closing.nests:
                self._depth += 1
            elif self._depth:
                self._depth -= tag in closing.forced or tag in closing.unnests
            elif verdict:
                self._write(text, start)
                return self._name_end(tag), self._rest(text, start, after, tag)
            look = after if tag in closing.nests or tag in closing.forced else start + 1

    def plain(self, text: str) -> None:
        """Do nothing: every marker token arrives as a sign."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        """Take text kept back at a cut: an unconfirmed closing tag, or a part of one."""
        start, after, tag = self._delimiters.find(text, 0, more=False)
        if tag is None or tag in self._closing.nests or self._depth:
            return None, ""
        return self._name_end(tag), self._rest(text, start, after, tag)

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

    def _rest(self, text: str, start: int, after: int, tag: str) -> str:
        if tag in self._closing.implied or tag in self._closing.forced:
            return text[start:]
        return text[after:].partition(">")[2] if tag in self._closing.unfinished else text[after:]


@dataclass(slots=True)
class KnownEnds:
    """Number of upcoming ends of calls in the section that are known not to be quoted."""

    num: int = 0


class CallValue(Tagged):
    """Want for a value in a section that may contain several calls, with text between them.

    Text in the value that looks like a call is either quoted or the next call. If a call opens
    inside the value, or ends there and invalid text follows, everything is kept back until later
    openings and ends decide:

    - If a call opens and ends and more of the value follows, the call is quoted.
    - If the end of a call is followed by another end that fits the section, the first is quoted.
    - If the end of a call is followed by another whole call, or by the end of the output, the
      first end was meant.
    - If a call opens and the section ends with it, an end is missing: an opening tag is quoted, or
      the model has omitted the value's closing tag. If the tag names an offered tool at the
      beginning of a line, the call cannot be trusted, and ``doubt`` is called.

    Without ``names`` any name counts as an offered tool. ``known`` is shared by the values of a
    section, so that no end is judged twice.
    """

    _kept: list[str] | None = None
    _size = 0
    """Number of characters kept back before the current text."""
    _last = ""
    """Last character that certainly belongs to the value."""
    _seen = False
    """True if the value contains text that looks like its own closing tag."""
    _num_open = 0
    """Number of calls that are open in the value."""
    _first: tuple[int, str] | None = None
    """First closing tag that is followed by the end of a call which nothing in the value opened."""
    _behind_first = 0
    """Position after that end of a call."""
    _num_ends = _num_later = _num_known = 0
    """Number of unopened ends of calls, of calls after the first end, and of known ends."""
    _paired = False
    """True if the next end of a call follows a closing tag."""
    _fallback: tuple[int, str] | None = None
    """Closing tag that ends the value if the tag that opened in it is quoted."""
    _in_doubt = False

    def __init__(
        self,
        lexicon: Lexicon,
        closing: Closing,
        sink: TextSink,
        words: Mapping[str, Follow | None] | None,
        known: KnownEnds,
        names: Container[str],
        doubt: Callable[[], object],
    ) -> None:
        super().__init__(lexicon, closing, sink, words)
        self._known, self._names, self._doubt = known, names, doubt
        self._text, self._look = "", 0

    def _release(self) -> None:
        """Reset the state after text that was kept back turned out to be part of the value."""
        self._kept, self._size, self._num_open, self._first = None, 0, 0, None
        self._num_ends = self._num_later = self._num_known = self._behind_first = 0
        self._paired, self._fallback, self._in_doubt = False, None, False

    def take(self, text: str, more: bool) -> Taken:
        self._text, self._look = text, 0
        while True:
            text = self._text
            start, after, tag = self._delimiters.find(text, self._look, more)
            verdict = follows(text, after, self._words[tag], more) if tag else None
            if tag is None or verdict is None:
                return self._leave(start, more)
            self._look = after
            taken = self._take_tag(start, tag, verdict, more)
            if taken is not None:
                return taken

    def truncate(self, text: str) -> Taken:
        self._text = text
        if self._first and self._num_later:
            return self._close_first()
        start, _, tag = self._delimiters.find(text, 0, more=True)
        if tag == self._closing.call and not self._num_open:
            start = len(text)
        self._write_kept(start)
        if tag is None or tag == self._closing.call or self._num_open:
            return None, ""
        return super().truncate(text[start:])

    def _take_tag(self, start: int, tag: str, verdict: bool, more: bool) -> Taken | None:
        closing, after = self._closing, self._look
        if tag in closing.nests:
            self._depth += verdict
        elif tag in closing.forced:
            if verdict and not self._depth:
                return self._close_first() if self._is_meant else self._close(start, tag)
            self._depth -= self._depth > 0
        elif self._depth:
            pass
        elif tag == closing.call:
            if verdict:
                self._open_call(start)
        elif tag in closing.call_ends:
            return self._end_call(start, tag, verdict, more)
        elif verdict:
            return self._end_value(start, tag)
        elif tag in closing.pairs:
            self._seen |= not self._num_open
            if follows(self._text, after, closing.pairs[tag], more):
                return self._end_pair(start, tag)
        return None

    @property
    def _is_meant(self) -> bool:
        """True if the first unopened end of a call ended this call."""
        return self._first is not None and (self._num_ends == 1 or self._num_later > 0)

    def _open_call(self, start: int) -> None:
        if self._kept is None:
            named = _NAME.match(self._text, self._look)
            offered = not self._names or (named is not None and named[1] in self._names)
            self._in_doubt = offered and (self._text[start - 1 : start] or self._last) == "\n"
        self._num_later += self._first is not None
        self._num_open += 1
        self._keep(start)

    def _end_value(self, start: int, tag: str) -> Taken | None:
        """End the value, or the call with it, at a tag that is not inside another call."""
        if not self._num_open:
            return self._close(self._size + start, tag)
        if not self._first and not self._fallback and tag not in self._closing.implied:
            self._fallback = self._size + start, tag
        return None

    def _end_pair(self, start: int, tag: str) -> Taken | None:
        """Take a closing tag and the end of a call that are not followed by valid text."""
        if self._num_open:
            self._paired = True
            return None
        if self._known.num:
            self._known.num -= 1
            return self._close(self._size + start, tag)
        place = self._keep(start)
        self._num_ends += 1
        self._first = self._first or (place, tag)
        self._paired = True
        return None

    def _end_call(self, start: int, tag: str, verdict: bool, more: bool) -> Taken | None:
        paired, self._paired = self._paired, False
        if not self._num_open:
            if paired and self._num_ends == 1:
                self._behind_first = self._size + self._look
            return self._close_implied(start, tag) if verdict and not paired else None
        self._num_open -= 1
        if self._num_open:
            return None
        if self._first:
            if verdict:
                return self._close_first()
            self._num_known += paired
        elif not verdict:
            self._write_kept(self._look)
        elif not self._goes_on(more):
            if self._in_doubt:
                self._doubt()
            return self._close(*(self._fallback or (self._size + start, tag)))
        return None

    def _close_implied(self, start: int, tag: str) -> Taken:
        """Close the value before another tag, unless the call's end is written twice."""
        between = "".join([*(self._kept or ()), self._text[:start]])[self._behind_first :]
        twice = self._first is not None and not between.strip()
        return self._close_first() if twice else self._close(self._size + start, tag)

    def _goes_on(self, more: bool) -> bool:
        """Return True if another call follows."""
        following = self._text[self._look :]
        return bool(following.strip() and follows(following, 0, {self._closing.call: None}, more))

    def _keep(self, start: int) -> int:
        """Keep the text back from ``start`` on. Return that position in the text kept back."""
        if self._kept is not None:
            return self._size + start
        if start:
            self._sink(self._spell(self._text[:start]))
        self._kept, self._text = [], self._text[start:]
        self._look -= start
        return 0

    def _write_kept(self, end: int) -> None:
        """Write the text kept back and the text up to ``end`` as part of the value."""
        text = "".join([*(self._kept or ()), self._text[:end]])
        if text:
            self._last = text[-1]
            self._sink(self._spell(text))
        self._text, self._look = self._text[end:], 0
        if self._kept is not None:
            self._release()

    def _leave(self, start: int, more: bool) -> Taken:
        """Write the text up to ``start``, or keep it back except for its last character."""
        text = self._text
        if self._kept is None:
            if start:
                self._last = text[start - 1]
                self._sink(self._spell(text[:start]))
            return None, text[start:]
        if more:
            end = min(start, len(text) - 1)
            self._kept.append(text[:end])
            self._size += end
            return None, text[end:]
        if self._is_meant:
            return self._close_first()
        self._write_kept(len(text))
        return None, ""

    def _close_first(self) -> Taken:
        self._known.num = self._num_known
        place, tag = self._first or (0, "")
        return self._close(place, tag)

    def _close(self, place: int, tag: str) -> Taken:
        """End the value at ``place``, counted from the beginning of the text kept back."""
        text = "".join([*self._kept, self._text]) if self._kept else self._text
        if (self._seen and tag in self._closing.implied) or self._is_interrupted(text, place):
            self._doubt()
        if place:
            self._sink(self._spell(text[:place]))
        return self._name_end(tag), self._rest(text, place, place + len(tag), tag)

    def _is_interrupted(self, text: str, place: int) -> bool:
        """Return True if a parameter opens after the end of a call, without a call before it."""
        if self._first is None or place <= self._first[0]:
            return False
        opening = text.find(self._closing.parameter, self._first[0], place)
        return opening >= 0 and text.find(self._closing.call, self._first[0], opening) < 0
