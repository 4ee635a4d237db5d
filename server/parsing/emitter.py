"""Collects the events of one feed, neighbouring pieces of the same text joined."""

from __future__ import annotations

from engine.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallDelta
from server.parsing.markers import FRAGMENT

_Delta = type[ReasoningDelta] | type[ContentDelta] | type[ToolCallDelta]


class Emitter:
    """Text of one kind at a time; what is never written makes no event.

    ``fragment`` is what FRAGMENT stands for, where it is left in a text.
    """

    __slots__ = ("_events", "_index", "_make", "_parts", "fragment")

    def __init__(self, fragment: str = "") -> None:
        self.fragment = fragment
        self._events: list[ParserEvent] = []
        self._parts: list[str] = []
        self._make: _Delta = ContentDelta
        self._index = -1

    def reasoning(self, text: str) -> None:
        self._text(ReasoningDelta, text)

    def content(self, text: str) -> None:
        self._text(ContentDelta, text)

    def arguments(self, index: int, text: str) -> None:
        if self._make is not ToolCallDelta or self._index != index:
            self._join()
            self._make, self._index = ToolCallDelta, index
        self._parts.append(text)

    def event(self, event: ParserEvent) -> None:
        if self._parts:
            self._join()
        self._events.append(event)

    def drain(self) -> list[ParserEvent]:
        if self._parts:
            self._join()
        events, self._events = self._events, []
        return events

    def spell(self, text: str) -> str:
        return text.replace(FRAGMENT, self.fragment) if self.fragment else text

    def _text(self, make: _Delta, text: str) -> None:
        if self._make is not make:
            self._join()
            self._make = make
        self._parts.append(text)

    def _join(self) -> None:
        parts = self._parts
        text = parts[0] if len(parts) == 1 else "".join(parts)
        parts.clear()
        if not text:
            return
        if self.fragment:
            text = self.spell(text)
        if self._make is ToolCallDelta:
            self._events.append(ToolCallDelta(self._index, text))
        elif self._make is ContentDelta:
            self._events.append(ContentDelta(text))
        else:
            self._events.append(ReasoningDelta(text))
