"""Events joined: those of one feed by ``Emitter``, those of a whole answer by ``AnswerFold``.

A whole answer is what a client has after it joins the stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.events import (
    ContentDelta,
    Event,
    Outcome,
    ParserEvent,
    Phase,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from server.parsing.markers import FRAGMENT


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

    def add(self, event: Event) -> None:
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


class Emitter:
    """Collects the events of one feed, neighbouring pieces of the same text joined.

    Text of one kind at a time; what is never written makes no event.

    ``fragment`` is what FRAGMENT stands for, where it is left in a text.
    """

    __slots__ = ("_events", "_index", "_make", "_parts", "fragment")

    def __init__(self, fragment: str = "") -> None:
        self.fragment = fragment
        self._events: list[ParserEvent] = []
        self._parts: list[str] = []
        self._make: _TextDelta | None = ContentDelta
        """None for arguments, those of the call ``_index``."""
        self._index = -1

    def reasoning(self, text: str) -> None:
        if self._make is not ReasoningDelta:
            self._join()
            self._make = ReasoningDelta
        self._parts.append(text)

    def content(self, text: str) -> None:
        if self._make is not ContentDelta:
            self._join()
            self._make = ContentDelta
        self._parts.append(text)

    def arguments(self, index: int, text: str) -> None:
        if self._make is not None or self._index != index:
            self._join()
            self._make, self._index = None, index
        self._parts.append(text)

    def event(self, event: ParserEvent) -> None:
        if self._parts:
            self._join()
        self._events.append(event)

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
