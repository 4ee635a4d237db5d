"""Markers: tokens where the tokenizer has them as such, else plain text to look for.

Holding back what may be the beginning of a marker is decided here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

FRAGMENT = "\udc00"
"""Stands for a token that plain-text markers are written with, in them and in the text.

No decoded text holds a lone surrogate, so that the same characters written as ordinary tokens are
not taken for it.
"""


class Stops:
    """A set of markers, as tokens and as a pattern for those that are plain text.

    ``spelled``: those that are tokens may be written with other ones, too.
    """

    __slots__ = ("_beginnings", "_longest", "markers", "pattern", "tokens")

    def __init__(self, markers: Iterable[str], ids: Container[str], spelled: bool = False) -> None:
        self.markers = frozenset(markers)
        named = sorted(self.markers, key=len)
        self.tokens = frozenset(marker for marker in named if marker in ids)
        written = [marker for marker in named if spelled or marker not in ids]
        self.pattern = re.compile("|".join(map(re.escape, written))) if written else None
        self._beginnings = re.compile("|".join(map(_beginnings, written)))
        self._longest = max(map(len, written), default=1)

    def find(self, text: str, at: int, more: bool) -> tuple[int, int, str | None]:
        """Where the first marker in ``text[at:]`` starts and ends, and which it is.

        Without one, None and where the possible beginning of one starts, if there is ``more`` to
        come. A beginning that starts before a whole marker goes first: only so does the reading
        not depend on where the text was cut.
        """
        size = len(text)
        if self.pattern is None:
            return size, size, None
        found = self.pattern.search(text, at)
        held = self._held(text, at) if more else size
        if found is not None and found.start() <= held:
            return found.start(), found.end(), found[0]
        return held, held, None

    def _held(self, text: str, at: int) -> int:
        found = self._beginnings.search(text, max(at, len(text) - self._longest + 1))
        return found.start() if found else len(text)


def _beginnings(marker: str) -> str:
    """A pattern for the proper prefixes of ``marker`` at the end of a text."""
    pattern = ""
    for char in reversed(marker[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return f"{pattern}\\Z" if pattern else r"(?!)"


class Lexicon:
    """Makes ``Stops`` for one vocabulary, each set once. ``spelled`` as in ``Stops``."""

    def __init__(self, ids: Container[str], spelled: bool = False) -> None:
        self._ids = ids
        self._spelled = spelled
        self._made: dict[tuple[str, ...], Stops] = {}

    def is_token(self, marker: str) -> bool:
        return marker in self._ids

    def is_text(self, marker: str) -> bool:
        """Whether a marker is plain text altogether, for want of a token."""
        return marker not in self._ids and FRAGMENT not in marker

    def stops(self, *markers: str) -> Stops:
        if markers not in self._made:
            self._made[markers] = Stops(markers, self._ids, self._spelled)
        return self._made[markers]
