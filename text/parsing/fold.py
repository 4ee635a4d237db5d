"""Events joined: those of one feed by ``Emitter``, those of a whole answer by ``AnswerFold``.

A whole answer is what a client has after it joins the stream.
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
    """Join the pieces. Calls come in order of their index."""
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
    """Collects the events of one feed, neighbouring pieces of the same text joined.

    Text of one kind at a time; what is never written makes no event.

    ``fragment`` is what FRAGMENT stands for, where it is left in a text.

    The end of a call waits for what follows it: parts of a call outside of it, or text behind one
    whose brackets the parser has closed, say that the call was not read as it was meant.
    """

    __slots__ = ("_end", "_events", "_index", "_is_fragile", "_make", "_parts", "fragment")

    def __init__(self, fragment: str = "") -> None:
        self.fragment = fragment
        self._events: list[ParserEvent] = []
        self._parts: list[str] = []
        self._make: _TextDelta | None = ContentDelta
        """None for arguments, those of the call ``_index``."""
        self._index = -1
        self._end: ToolCallEnd | None = None
        """The end that waits."""
        self._is_fragile = False
        """Text makes it malformed."""

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
        """The end of a call, for as long as nothing follows."""
        self.release()
        self._end, self._is_fragile = end, is_fragile
        self._make, self._index = None, -1

    def doubt(self) -> None:
        """The call that ended last was not meant as it was read, if its end still waits."""
        if self._end is not None and self._end.outcome in _WHOLE:
            self._end = replace(self._end, outcome=Outcome.MALFORMED)

    def doubt_fragile(self) -> None:
        """Doubt the call that ended last if it lacks its end: what follows may belong to it."""
        if self._is_fragile:
            self.doubt()

    def release(self) -> None:
        """Something else begins, or nothing follows."""
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
