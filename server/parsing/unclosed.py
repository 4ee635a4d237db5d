"""Thinking that a tool call ends: some models forget the end marker before it.

Whether a section of calls inside open thinking is quoted or meant only shows behind it. So it is
kept until then, with all that follows: where the thinking is closed later on, it was quoted; where
the model ends its answer without that, it was meant. An output that is cut off in the thinking is
thinking, unless it is cut off inside a further call that stands directly behind a whole one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from server.parsing.reader import Ended, Grammar, Reader, Until, Want

if TYPE_CHECKING:
    from server.parsing.message import Context


def unclosed(opener: str, meant: Grammar, context: Context) -> Generator[Want, str, str]:
    """Keeps the section that ``opener`` begins; returns the marker behind it, or nothing.

    ``meant`` reads it, from behind its opener, if it turns out to be calls.
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
