"""A whole answer from its events: what a client has after it joins the stream."""

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
