"""A value in tags, up to the closing tag that the rest of the output confirms.

A value may well contain its own tags (a file about chat templates does). So a closing tag closes
only where the grammar goes on as it must: after ``</parameter>`` another parameter or the end of
the call, after that another call or the end of the section. Else it is part of the value.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from server.parsing.markers import Follow, Lexicon, follows
from server.parsing.reader import DONE, Sink

FORCED = "forced"
"""What a value ends with that its own closing tag has not ended."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The words that may end a value, each with what must follow it.

    A word in ``implied`` opens or closes something else, so that the value ends before it: DONE is
    sent, and the word left in place. So it is with one in ``forced``, where FORCED is sent. What
    stands between a word in ``nests`` and one in ``forced`` is quoted: it ends nothing.
    ``unfinished`` words lack the rest of their tag, up to ``>``.
    """

    words: Mapping[str, Follow | None]
    implied: Container[str] = ()
    forced: Container[str] = ()
    nests: Container[str] = ()
    unfinished: Mapping[str, str] = field(default_factory=dict)
    """By word, the tag it is the beginning of."""
    unnests: Container[str] = ()
    """Words that close what a word in ``nests`` has opened, beside those in ``forced``."""


class Tagged:
    """A value up to the closing tag that the rest of the output confirms."""

    __slots__ = ("_closing", "_depth", "_sink", "_spell", "_stops", "lexicon", "tokens")

    def __init__(self, lexicon: Lexicon, closing: Closing, sink: Sink) -> None:
        self._stops = lexicon.stops(*closing.words)
        self._closing = closing
        self._sink = sink
        self._depth = 0
        """Openings of nested sections so far that have not been closed."""
        self.lexicon: Lexicon | None = lexicon
        self._spell = lexicon.spell
        self.tokens: frozenset[str] = frozenset()

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        closing, look = self._closing, 0
        while True:
            start, after, tag = self._stops.find(text, look, more)
            if tag is None:
                return self._write(text, start)
            verdict = follows(text, after, closing.words[tag], more)
            if verdict is None:
                return self._write(text, start)
            if verdict and tag in closing.nests:
                self._depth += 1
            elif self._depth:
                self._depth -= tag in closing.forced or tag in closing.unnests
            elif verdict:
                self._write(text, start)
                return self._ended(tag), self._rest(text, start, after, tag)
            look = after if tag in closing.nests or tag in closing.forced else start + 1

    def plain(self, text: str) -> None:
        """Every marker token comes as a sign."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        """What was kept back is a closing tag, all but confirmed, or a piece of one."""
        start, after, tag = self._stops.find(text, 0, more=False)
        if tag is None or tag in self._closing.nests or self._depth:
            return None, ""
        return self._ended(tag), self._rest(text, start, after, tag)

    def _write(self, text: str, end: int) -> tuple[None, str]:
        if end:
            self._sink(self._spell(text[:end]))
        return None, text[end:]

    def _ended(self, tag: str) -> str:
        if tag in self._closing.forced:
            return FORCED
        if tag in self._closing.implied:
            return DONE
        return self._closing.unfinished.get(tag) or self._spell(tag)

    def _rest(self, text: str, start: int, after: int, tag: str) -> str:
        if tag in self._closing.implied or tag in self._closing.forced:
            return text[start:]
        return text[after:].partition(">")[2] if tag in self._closing.unfinished else text[after:]


class LeadingBreak:
    """A sink that drops the line break, or other opening, that the text begins with."""

    __slots__ = ("_held", "_line", "_sink")

    def __init__(self, line: str, sink: Sink) -> None:
        self._line = line
        self._sink = sink
        self._held: str | None = ""

    def write(self, text: str) -> None:
        if self._held is not None:
            text = self._held + text
            if len(text) < len(self._line) and self._line.startswith(text):
                self._held = text
                return
            self._held, text = None, text.removeprefix(self._line)
        if text:
            self._sink(text)


class OwnLines:
    """A sink that drops the line break that the text begins with, and then the one at its end."""

    __slots__ = ("_held", "_on_lines", "_sink")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._on_lines: bool | None = None
        self._held = ""

    def write(self, text: str) -> None:
        if self._on_lines is None:
            self._on_lines = text.startswith("\n")
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if self._on_lines and text.endswith("\n") else ""
        if text := text.removesuffix(self._held):
            self._sink(text)
