"""Joining of events: ``Emitter`` joins the events of one feed, ``AnswerFold`` of a whole answer.

A folded answer is what a client has after joining the stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from eaglegate.text.events import (
    ContentDelta,
    Outcome,
    ParserEvent,
    Phase,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from eaglegate.text.parsing.markers import FRAGMENT


@dataclass(slots=True)
class AnswerPart:
    """Consecutive content, or consecutive reasoning."""

    phase: Phase
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True, kw_only=True)
class AnswerCall(AnswerPart):
    """A tool call; its text is the arguments."""

    phase: Phase = Phase.TOOL_CALL
    start: ToolCallStart
    outcome: Outcome | None = None


class AnswerFold:
    """Joins events into parts, in the order in which the model wrote them."""

    def __init__(self) -> None:
        self.parts: list[AnswerPart] = []
        self._calls: dict[int, AnswerCall] = {}

    @property
    def calls(self) -> list[AnswerCall]:
        return list(self._calls.values())

    def text(self, phase: Phase) -> str:
        return "".join(part.text for part in self.parts if part.phase is phase)

    def add(self, event: object) -> None:
        match event:
            case ContentDelta(text):
                self._extend(Phase.CONTENT, text)
            case ReasoningDelta(text):
                self._extend(Phase.REASONING, text)
            case ToolCallStart(index):
                self._calls[index] = AnswerCall(start=event)
                self.parts.append(self._calls[index])
            case ToolCallDelta(index, arguments):
                self._calls[index].pieces.append(arguments)
            case ToolCallEnd(index, outcome):
                self._calls[index].outcome = outcome
            case _:
                pass

    def _extend(self, phase: Phase, text: str) -> None:
        if not self.parts or self.parts[-1].phase is not phase:
            self.parts.append(AnswerPart(phase))
        self.parts[-1].pieces.append(text)


@dataclass(slots=True)
class FoldedCall:
    id: str
    name: str
    arguments: str = ""
    outcome: Outcome | None = None


@dataclass(slots=True)
class Folded:
    reasoning: str = ""
    content: str = ""
    calls: list[FoldedCall] = field(default_factory=list)


def fold(events: Iterable[ParserEvent]) -> Folded:
    """Join the pieces of an answer. Calls are in order of their index."""
    answer = AnswerFold()
    for event in events:
        answer.add(event)
    calls = [
        FoldedCall(call.start.id, call.start.name, call.text, call.outcome) for call in answer.calls
    ]
    return Folded(answer.text(Phase.REASONING), answer.text(Phase.CONTENT), calls)


_TextDelta = type[ReasoningDelta] | type[ContentDelta]
_WHOLE = (Outcome.VALID, Outcome.SCHEMA_MISMATCH, Outcome.UNCHECKED)


class Emitter:
    """Collector of the events of one feed, which joins neighbouring pieces of the same text.

    Text is of one kind at a time, and empty text makes no event. ``fragment`` replaces a FRAGMENT
    that is left in a text.

    The end of a call is held back until something follows it. Parts of a call outside the call, or
    text after a call whose brackets the parser has closed, show that the call was misread.
    """

    __slots__ = ("_end", "_events", "_index", "_is_fragile", "_make", "_parts", "fragment")

    def __init__(self, fragment: str = "") -> None:
        self.fragment = fragment
        self._events: list[ParserEvent] = []
        self._parts: list[str] = []
        self._make: _TextDelta | None = ContentDelta
        """Event class of the pending text; None for arguments of the call ``_index``."""
        self._index = -1
        self._end: ToolCallEnd | None = None
        """End of a call that is held back."""
        self._is_fragile = False
        """True if text after the call makes it malformed."""

    def reasoning(self, text: str) -> None:
        if self._make is not ReasoningDelta:
            self.release()
            self._make = ReasoningDelta
        self._parts.append(text)

    def content(self, text: str) -> None:
        if self._make is not ContentDelta:
            self.doubt_fragile()
            self.release()
            self._make = ContentDelta
        self._parts.append(text)

    def arguments(self, index: int, text: str) -> None:
        if self._make is not None or self._index != index:
            self.release()
            self._make, self._index = None, index
        self._parts.append(text)

    def event(self, event: ParserEvent) -> None:
        self.release()
        self._events.append(event)

    def hold(self, end: ToolCallEnd, is_fragile: bool) -> None:
        """Hold back the end of a call until something follows."""
        self.release()
        self._end, self._is_fragile = end, is_fragile
        self._make, self._index = None, -1

    def doubt(self) -> None:
        """Mark the last call as malformed if its end is still held back: the call was misread."""
        if self._end is not None and self._end.outcome in _WHOLE:
            self._end = replace(self._end, outcome=Outcome.MALFORMED)

    def doubt_fragile(self) -> None:
        """Doubt the last call if it lacks an end marker: the text after it may belong to it."""
        if self._is_fragile:
            self.doubt()

    def release(self) -> None:
        """Emit the pending text and the end of a call that was held back."""
        if self._parts:
            self._join()
        if self._end is not None:
            self._events.append(self._end)
            self._end, self._is_fragile = None, False

    def drain(self) -> list[ParserEvent]:
        if self._parts:
            self._join()
        events = self._events
        if events:
            self._events = []
            return events
        return []

    def spell(self, text: str) -> str:
        return text.replace(FRAGMENT, self.fragment) if self.fragment else text

    def _join(self) -> None:
        text = "".join(self._parts)
        self._parts = []
        if not text:
            return
        if self.fragment:
            text = self.spell(text)
        make = self._make
        self._events.append(ToolCallDelta(self._index, text) if make is None else make(text))
