"""A whole answer out of its events: what a client has that joined the stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.events import (
    ContentDelta,
    Outcome,
    ParserEvent,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)


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
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[FoldedCall] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
        elif isinstance(event, ContentDelta):
            content.append(event.text)
        elif isinstance(event, ToolCallStart):
            calls.append(FoldedCall(event.id, event.name))
            arguments.append([])
        elif isinstance(event, ToolCallDelta):
            arguments[event.index].append(event.arguments)
        else:
            calls[event.index].outcome = event.outcome
    for call, pieces in zip(calls, arguments, strict=True):
        call.arguments = "".join(pieces)
    return Folded("".join(reasoning), "".join(content), calls)
