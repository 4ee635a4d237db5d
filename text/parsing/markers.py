"""Markers: tokens where the tokenizer has them as such, else plain text to look for.

Holding back what may be the beginning of a marker is decided here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import Any

FRAGMENT = "\udc00"
"""Stands for a token that plain-text markers are written with, in them and in the text.

No decoded text holds a lone surrogate, so that the same characters written as ordinary tokens are
not taken for it.
"""


FIRST_SIGN, LAST_SIGN = 0xDC01, 0xDCFF
_SIGNS = re.compile(f"[{chr(FIRST_SIGN)}-{chr(LAST_SIGN)}]")
"""Signs of marker tokens inside a text that is still to be judged; each stands for one, as
FRAGMENT does.
"""


class Delimiters:
    """Markers that end a piece of text: as tokens, and as a pattern for those that are plain text.

    ``spelled``: those that are tokens may be written with other ones, too.
    """

    __slots__ = ("_beginnings", "_first", "_longest", "markers", "pattern", "tokens")

    def __init__(self, markers: Iterable[str], ids: Container[str], spelled: bool) -> None:
        self.markers = frozenset(markers)
        named = sorted(self.markers, key=len)
        self.tokens = frozenset(marker for marker in named if marker in ids)
        written = [marker for marker in named if spelled or marker not in ids]
        self.pattern = re.compile("|".join(map(re.escape, written))) if written else None
        self._first = tuple({marker[0] for marker in written})
        """The characters that the written ones begin with."""
        self._beginnings = re.compile("|".join(map(match_beginnings, written)))
        self._longest = max(map(len, written), default=1)

    def find(self, text: str, at: int, more: bool) -> tuple[int, int, str | None]:
        """Find the first marker in ``text[at:]``: its beginning, its end, and the marker.

        Without one, the marker is None and the beginning is that of a possible marker, if there is
        ``more`` to come. A possible marker that begins before a whole one goes first: only so does
        the reading not depend on where the text was cut.
        """
        size = len(text)
        for char in self._first:
            if char in text:
                break
        else:
            return size, size, None
        assert self.pattern is not None
        found = self.pattern.search(text, at)
        held = self._held(text, at) if more else size
        if found is not None and found.start() <= held:
            return found.start(), found.end(), found[0]
        return held, held, None

    def _held(self, text: str, at: int) -> int:
        found = self._beginnings.search(text, max(at, len(text) - self._longest + 1))
        return found.start() if found else len(text)


def match_beginnings(marker: str) -> str:
    """A pattern for the proper prefixes of ``marker`` at the end of a text."""
    pattern = ""
    for char in reversed(marker[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return f"{pattern}\\Z"


class Lexicon:
    """Makes ``Delimiters`` for one vocabulary, each set once. ``spelled`` as in ``Delimiters``."""

    def __init__(self, ids: Container[str], spelled: bool = False) -> None:
        self._ids = ids
        self._spelled = spelled
        self._made: dict[tuple[str, ...], Delimiters] = {}
        self._remembered: dict[Hashable, Any] = {}
        self._signs: dict[str, str] = {}
        self._markers: dict[str, str] = {}

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Make a value that depends on the vocabulary alone once; it never changes."""
        if key not in self._remembered:
            self._remembered[key] = make()
        return self._remembered[key]

    def sign(self, marker: str) -> str:
        """The character that stands for a marker token in text."""
        if marker not in self._signs:
            sign = chr(FIRST_SIGN + len(self._signs))
            self._signs[marker], self._markers[sign] = sign, marker
        return self._signs[marker]

    def words(self, *markers: str) -> tuple[str, ...]:
        """List the ways in which each marker may stand in a text: as its sign, spelled out, or
        either.
        """
        signs = [self.sign(marker) for marker in markers if self.is_token(marker)]
        texts = [marker for marker in markers if self._spelled or not self.is_token(marker)]
        return (*signs, *texts)

    def spell(self, text: str) -> str:
        """``text`` with the markers that its signs stand for."""
        if text.isascii():
            return text
        return _SIGNS.sub(lambda sign: self._markers[sign[0]], text)

    def split(self, text: str) -> list[tuple[str, str]]:
        """Pieces of text, and the marker behind each; none behind the last."""
        pieces, start = [], 0
        for sign in _SIGNS.finditer(text):
            pieces.append((text[start : sign.start()], self._markers[sign[0]]))
            start = sign.end()
        return [*pieces, (text[start:], "")]

    def is_token(self, marker: str) -> bool:
        return marker in self._ids

    def is_text(self, marker: str) -> bool:
        """Whether a marker is plain text altogether, for want of a token."""
        return marker not in self._ids and FRAGMENT not in marker

    def delimiters(self, *markers: str) -> Delimiters:
        if markers not in self._made:
            self._made[markers] = Delimiters(markers, self._ids, self._spelled)
        return self._made[markers]


Follow = dict[str, "Follow | None"]
"""Words that may come next, white space aside, each with the words behind it; None where the
reading is settled.
"""
NAME = "\0"
"""Word of a ``Follow`` that stands for the name of a function or a parameter."""
LONGEST_BLANK = 100
"""White space between two tags that belong together; more of it is text."""
_NAME = re.compile(r"""[^\s<>{}()\[\]"'=,:;|\ud800-\udfff]{1,128}""")


def follows(text: str, at: int, follow: Follow | None, more: bool) -> bool | None:
    """Whether ``text[at:]`` goes on as ``follow`` says; None: not known yet.

    The end of the output settles it.
    """
    if follow is None:
        return True
    start = at
    while at < len(text) and text[at].isspace():
        at += 1
    if at - start > LONGEST_BLANK:
        return False
    if at == len(text):
        return None if more else True
    undecided = False
    for word, then in follow.items():  # one may be the beginning of another
        verdict: bool | None = False
        if text.startswith(word, at):
            verdict = follows(text, at + len(word), then, more)
        elif word == NAME and (name := _NAME.match(text, at)):
            is_cut = name.end() == len(text)
            cut = None if more else False
            verdict = cut if is_cut else follows(text, name.end(), then, more)
        if verdict:
            return True
        undecided = undecided or verdict is None
    undecided = undecided or (more and any(word.startswith(text[at:]) for word in follow))
    return None if undecided else False


class Quotes:
    """Marker tokens that may end a string that has not been closed, each with the text that must
    follow.

    Any other marker token in a string is quoted.
    """

    __slots__ = ("_delimiters", "closing", "lexicon")

    def __init__(self, lexicon: Lexicon, closing: Mapping[str, Follow | None]) -> None:
        self.lexicon = lexicon
        self.closing = closing
        self._delimiters: dict[Delimiters, Delimiters] = {}

    def add_to(self, delimiters: Delimiters) -> Delimiters:
        """Add the signs that may end a string to ``delimiters``."""
        if not self.closing:
            return delimiters
        if delimiters not in self._delimiters:
            self._delimiters[delimiters] = self.lexicon.delimiters(
                *delimiters.markers, *self.closing
            )
        return self._delimiters[delimiters]
