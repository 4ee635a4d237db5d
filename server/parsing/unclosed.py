"""Thinking that a tool call ends: some models forget the end marker before it.

Whether a section of calls inside open thinking is quoted or meant only shows behind it. So it is
kept until then: where the model ends its answer with it, it was meant; where anything else follows,
or the output was cut off, it was thinking. In formats without a closing marker a call goes on to
the end of the answer, or up to the end marker of the thinking it was quoted in.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from server.parsing.reader import Ended, Grammar, Next, Reader, Until, Want

if TYPE_CHECKING:
    from server.parsing.message import Context


def unclosed(opener: str, meant: Grammar, context: Context) -> Generator[Want, str, str]:
    """Keeps the section that ``opener`` begins; returns the marker behind it, or nothing.

    ``meant`` reads it, from behind its opener, if it turns out to be calls.
    """
    kept = _Kept(opener)
    stops = context.lexicon.stops(*context.reasoning.ends, *context.tools.markers)
    try:
        marker = opener
        while marker not in context.reasoning.ends:
            if marker == context.tools.closer:
                marker = yield Next(stops, kept.text, keep=None)
            else:
                marker = yield Until(stops, kept.text)
            if marker not in stops.markers:
                break
            if marker in stops.tokens:
                kept.marker(marker)
            else:
                kept.text(marker)
    except Ended as ended:
        if ended.by_model:
            kept.play(meant)
        else:
            context.out.reasoning.write(kept.written())
        raise
    ends = marker in context.reasoning.ends
    context.out.reasoning.write(kept.written().removesuffix(marker if ends else ""))
    return marker if ends else ""


class _Kept:
    """Markers and text in turn."""

    def __init__(self, opener: str) -> None:
        self._opener = opener
        self._pieces: list[tuple[bool, str]] = []

    def text(self, text: str) -> None:
        self._pieces.append((False, text))

    def marker(self, marker: str) -> None:
        self._pieces.append((True, marker))

    def written(self) -> str:
        return self._opener + "".join(text for _, text in self._pieces)

    def play(self, grammar: Grammar) -> None:
        reader = Reader(grammar)
        for is_marker, text in self._pieces:
            if is_marker:
                reader.marker(text)
            else:
                reader.text(text)
        reader.end(by_model=True)
