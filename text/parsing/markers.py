"""Markers: tokens if the tokenizer has them, else plain text to search for.

Only this module decides how much text is held back as the possible beginning of a marker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import Any

from eaglegate.text.parsing.json_scan import JsonScan

FRAGMENT = "\udc00"
"""Placeholder, in markers and in text, for a token that plain-text markers are written with.

Decoded text never contains a lone surrogate, so the same characters written as ordinary tokens are
not mistaken for the token.
"""


FIRST_SIGN, LAST_SIGN = 0xDC01, 0xDCFF
_SIGNS = re.compile(f"[{chr(FIRST_SIGN)}-{chr(LAST_SIGN)}]")
"""Placeholders for marker tokens in text that has not been judged yet; compare FRAGMENT."""


class Delimiters:
    """Markers that end a piece of text: some are tokens, and a pattern finds the plain-text ones.

    With ``may_spell``, a marker that is a token may also be written with other tokens.
    """

    __slots__ = ("_beginnings", "_first", "_longest", "markers", "pattern", "tokens")

    def __init__(self, markers: Iterable[str], ids: Container[str], may_spell: bool) -> None:
        self.markers = frozenset(markers)
        sorted_markers = sorted(self.markers, key=len)
        self.tokens = frozenset(marker for marker in sorted_markers if marker in ids)
        text_markers = [marker for marker in sorted_markers if may_spell or marker not in ids]
        self.pattern = re.compile("|".join(map(re.escape, text_markers))) if text_markers else None
        self._first = tuple({marker[0] for marker in text_markers})
        """First characters of the markers that are searched for in text."""
        self._beginnings = re.compile("|".join(map(match_beginnings, text_markers)))
        self._longest = max(map(len, text_markers), default=1)

    def find(self, text: str, position: int, has_more: bool) -> tuple[int, int, str | None]:
        """Find the first marker in ``text[position:]``: its beginning, its end, and the marker.

        Without a marker, it is None and the beginning is that of a possible marker if text is to
        come (``has_more``). A possible marker that begins before a complete one takes precedence,
        so that the result does not depend on where the text was split.
        """
        size = len(text)
        for char in self._first:
            if char in text:
                break
        else:
            return size, size, None
        assert self.pattern is not None
        match = self.pattern.search(text, position)
        partial_start = self._find_held(text, position) if has_more else size
        if match is not None and match.start() <= partial_start:
            return match.start(), match.end(), match[0]
        return partial_start, partial_start, None

    def _find_held(self, text: str, position: int) -> int:
        match = self._beginnings.search(text, max(position, len(text) - self._longest + 1))
        return match.start() if match else len(text)


def match_beginnings(marker: str) -> str:
    """Return a pattern for the proper prefixes of ``marker`` at the end of a text."""
    pattern = ""
    for char in reversed(marker[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return f"{pattern}\\Z"


class Lexicon:
    """Cache of ``Delimiters`` for one vocabulary. For ``may_spell`` see ``Delimiters``."""

    def __init__(self, ids: Container[str], may_spell: bool = False) -> None:
        self._ids = ids
        self._may_spell = may_spell
        self._made: dict[tuple[str, ...], Delimiters] = {}
        self._remembered: dict[Hashable, Any] = {}
        self._signs: dict[str, str] = {}
        self._markers: dict[str, str] = {}

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return a value that depends only on the vocabulary, and make it on first use."""
        if key not in self._remembered:
            self._remembered[key] = make()
        return self._remembered[key]

    def sign(self, marker: str) -> str:
        """Return the character that stands for a marker token in text."""
        if marker not in self._signs:
            sign = chr(FIRST_SIGN + len(self._signs))
            self._signs[marker], self._markers[sign] = sign, marker
        return self._signs[marker]

    def words(self, *markers: str) -> tuple[str, ...]:
        """List the forms that markers may have in a text: as signs, spelled out, or both."""
        signs = [self.sign(marker) for marker in markers if self.is_token(marker)]
        texts = [marker for marker in markers if self._may_spell or not self.is_token(marker)]
        return (*signs, *texts)

    def spell(self, text: str) -> str:
        """Replace the signs in ``text`` by their markers."""
        if text.isascii():
            return text
        return _SIGNS.sub(lambda sign: self._markers[sign[0]], text)

    def split(self, text: str) -> list[tuple[str, str]]:
        """Split a text at its signs into pieces, each with the marker after it or ""."""
        pieces, start = [], 0
        for sign in _SIGNS.finditer(text):
            pieces.append((text[start : sign.start()], self._markers[sign[0]]))
            start = sign.end()
        return [*pieces, (text[start:], "")]

    def is_token(self, marker: str) -> bool:
        return marker in self._ids

    def is_text(self, marker: str) -> bool:
        """Return True if a marker is plain text, because the tokenizer has no token for it."""
        return marker not in self._ids and FRAGMENT not in marker

    def delimiters(self, *markers: str) -> Delimiters:
        if markers not in self._made:
            self._made[markers] = Delimiters(markers, self._ids, self._may_spell)
        return self._made[markers]


Follow = dict[str, "Follow | None"]
"""Words that may come next after white space, each with the words that must follow it, or None."""
NAME = "\0"
"""Word in a ``Follow`` that stands for the name of a function or parameter."""
JSON = "\1"
"""Word in a ``Follow`` that stands for a JSON object."""
LONGEST_OBJECT = 4096
"""Longest JSON object whose end is searched for. A longer one counts as complete."""
LONGEST_BLANK = 100
"""Longest white space between two tags that belong together. Longer white space is text."""
_NAME = re.compile(r"""[^\s<>{}()\[\]"'=,:;|\ud800-\udfff]{1,128}""")


def follows(text: str, position: int, follow: Follow | None, has_more: bool) -> bool | None:
    """Return True if ``text[position:]`` continues with ``follow``; None if not known yet.

    A text that ends too early counts as a match at the end of the output.
    """
    if follow is None:
        return True
    start = position
    while position < len(text) and text[position].isspace():
        position += 1
    if position - start > LONGEST_BLANK:
        return False
    if position == len(text):
        return None if has_more else True
    is_undecided = False
    for word, next_words in follow.items():  # a word may be a prefix of another
        verdict: bool | None = False
        if text.startswith(word, position):
            verdict = follows(text, position + len(word), next_words, has_more)
        elif word == NAME and (name := _NAME.match(text, position)):
            is_cut = name.end() == len(text)
            cut_verdict = None if has_more else False
            verdict = cut_verdict if is_cut else follows(text, name.end(), next_words, has_more)
        elif word == JSON and text[position] == "{" and text[position + 1 : position + 2] != "\\":
            verdict = _follows_object(text, position, next_words, has_more)
        if verdict:
            return True
        is_undecided = is_undecided or verdict is None
    is_undecided = is_undecided or (
        has_more and any(word.startswith(text[position:]) for word in follow)
    )
    return None if is_undecided else False


def _follows_object(text: str, position: int, follow: Follow | None, has_more: bool) -> bool | None:
    scan = JsonScan()
    end = scan.feed(text, position, min(len(text), position + LONGEST_OBJECT))
    if scan.done:
        return follows(text, end, follow, has_more)
    return True if end < len(text) or not has_more else None


class Quotes:
    """Marker tokens that may end an unclosed string, each with the text that must follow.

    Any other marker token in a string is quoted text.
    """

    __slots__ = ("closing", "lexicon")

    def __init__(self, lexicon: Lexicon, closing: Mapping[str, Follow | None]) -> None:
        self.lexicon = lexicon
        self.closing = closing

    def add_to(self, delimiters: Delimiters) -> Delimiters:
        """Add the signs that may end a string to ``delimiters``."""
        return self.lexicon.delimiters(*delimiters.markers, *self.closing)
