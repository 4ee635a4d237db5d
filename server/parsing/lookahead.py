"""Decides by the text that follows whether a marker opens anything, and where a name ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from server.parsing.markers import Follow, Lexicon, Stops, follows
from server.parsing.message import Context
from server.parsing.reader import Ended, Subgrammar, Until, Want

_NAME = re.compile(r"[\w.:\-]{1,128}")


class Ahead:
    """Whether the text goes on as ``follow`` says: YES or NO, and nothing is taken."""

    __slots__ = ("_follow", "tokens")
    lexicon: Lexicon | None = None
    YES, NO = "yes", "no"

    def __init__(self, follow: Follow, stops: Stops) -> None:
        self._follow = follow
        self.tokens = stops.tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        verdict = follows(text, 0, self._follow, more) if more or text.strip() else False
        if verdict is None:
            return None, text
        return self.YES if verdict else self.NO, text

    def plain(self, text: str) -> None:
        """A marker token is no text that could go on."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Looking:
    """Whether the text begins with ``whole``: YES or NO, and nothing is taken.

    ``beginning`` matches what may still become it. A marker in ``tokens`` is sent as such.
    """

    __slots__ = ("_beginning", "_whole", "tokens")
    lexicon: Lexicon | None = None
    YES, NO = Ahead.YES, Ahead.NO

    def __init__(
        self,
        whole: re.Pattern[str],
        beginning: re.Pattern[str],
        tokens: frozenset[str] = frozenset(),
    ) -> None:
        self._whole = whole
        self._beginning = beginning
        self.tokens = tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if self._whole.match(text):
            return self.YES, text
        return (None if more and self._beginning.match(text) else self.NO), text

    def plain(self, text: str) -> None:
        """A marker token is no text that could go on."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Skipping(Looking):
    """Takes ``whole``, where the text begins with it and can no longer become more of it."""

    __slots__ = ()

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if more and self._beginning.match(text):
            return None, text
        found = self._whole.match(text)
        return (self.YES, text[found.end() :]) if found else (self.NO, text)


def opens(opener: str, follow: Follow, context: Context) -> Generator[Want, str, bool]:
    """Whether a plain-text ``opener`` opens anything: not unless the text goes on as it must."""
    try:
        opened = (yield Ahead(follow, context.lexicon.stops())) == Ahead.YES
    except Ended:
        context.out.content.unmark(opener)
        raise
    if not opened:
        context.out.content.unmark(opener)
    return opened


def last_name(stops: Stops, parts: list[str], begin: Callable[[str], object]) -> Subgrammar:
    """A name up to a marker. Where the model ends its answer with the name, it is a call."""
    try:
        return (yield Until(stops, parts.append))
    except Ended as ended:
        name = "".join(parts).strip()
        if ended.by_model and _NAME.fullmatch(name):
            begin(name)
            raise Ended(by_model=True) from None
        raise
