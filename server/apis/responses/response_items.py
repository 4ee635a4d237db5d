"""Writers of a response's items, which produce their current state and their stream events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from eaglegate.server.apis.responses.client_tools import write_call
from eaglegate.server.apis.responses.items import new_id

ResponseEvent = dict[str, Any]
"""An API event without its sequence number."""

CALLS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
"""Kinds of calls: the member that contains their text, and the prefix of their events."""


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """Style of reasoning items."""

    summary: bool = False
    """True if reasoning is written as a summary, which then contains all of it."""
    encrypt: Callable[[str], str] | None = None
    """Makes the ``encrypted_content``, if the client asked for it."""


class ItemWriter(ABC):
    """Writes one item. Its text grows until the item is closed."""

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.id = new_id(kind)
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @abstractmethod
    def snapshot(self, status: str) -> dict[str, Any]:
        """Return the item's current state."""

    @abstractmethod
    def start_events(self) -> Iterator[ResponseEvent]:
        """Yield the events before the first delta."""

    @abstractmethod
    def finish_events(self) -> Iterator[ResponseEvent]:
        """Yield the events after the last delta."""

    @abstractmethod
    def grow(self, text: str) -> ResponseEvent:
        """Append a piece of text, and return its delta event."""

    def extend(self, text: str) -> Iterator[ResponseEvent]:
        """Append a piece of text, and yield its events."""
        yield self.grow(text)

    def _delta(self, kind: str, text: str) -> ResponseEvent:
        self._texts.append(text)
        return {"type": f"{kind}.delta", **self._place(), "delta": text}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


class CallWriter(ItemWriter):
    """Writes a call of a function or a custom tool."""

    def __init__(self, kind: str, index: int, call_id: str, name: dict[str, str]) -> None:
        """Create the writer; ``name`` is the tool's name, and its namespace if it has one."""
        super().__init__(kind, index)
        self._member, self._events = CALLS[kind]
        self._call_id = call_id
        self._name = name

    def snapshot(self, status: str) -> dict[str, Any]:
        item = {"id": self.id, "type": self.kind, "call_id": self._call_id, **self._name}
        return item | {"status": status, self._member: self.text}

    def start_events(self) -> Iterator[ResponseEvent]:
        yield from ()

    def grow(self, text: str) -> ResponseEvent:
        return self._delta(self._events, text)

    def finish_events(self) -> Iterator[ResponseEvent]:
        name = {"name": self._name["name"]} if self.kind == "function_call" else {}
        yield {"type": f"{self._events}.done", **self._place(), **name, self._member: self.text}


class ClientToolWriter(ItemWriter):
    """Writes a call of a tool that OpenAI defines. It is shown once its arguments are complete."""

    def __init__(self, tool: str, index: int, call_id: str) -> None:
        super().__init__(f"{tool}_call", index)
        self._tool = tool
        self._call_id = call_id

    def snapshot(self, status: str) -> dict[str, Any]:
        text = self.text if status != "in_progress" else ""
        if self._tool == "apply_patch" and status == "incomplete":  # not a status of its items
            status = "in_progress"
        item = {"id": self.id, "type": self.kind, "call_id": self._call_id, "status": status}
        return item | write_call(self._tool, text)

    def start_events(self) -> Iterator[ResponseEvent]:
        yield from ()

    def grow(self, text: str) -> ResponseEvent:
        raise NotImplementedError

    def extend(self, text: str) -> Iterator[ResponseEvent]:
        self._texts.append(text)
        yield from ()

    def finish_events(self) -> Iterator[ResponseEvent]:
        yield from ()


class _PartWriter(ItemWriter):
    """Writes an item whose text is in one content part."""

    events: ClassVar[str]
    part_events: ClassVar[str] = "response.content_part"
    at: ClassVar[str] = "content_index"

    def part(self) -> dict[str, Any]:
        """Return the part's current state."""
        raise NotImplementedError

    def _place(self) -> dict[str, Any]:
        return super()._place() | {self.at: 0}

    def parts(self) -> list[dict[str, Any]]:
        return [self.part()] if self._texts else []

    def start_events(self) -> Iterator[ResponseEvent]:
        yield {"type": f"{self.part_events}.added", **self._place(), "part": self.part()}

    def grow(self, text: str) -> ResponseEvent:
        return self._delta(self.events, text)

    def finish_events(self) -> Iterator[ResponseEvent]:
        yield self._done_event()
        yield {"type": f"{self.part_events}.done", **self._place(), "part": self.part()}

    def _done_event(self) -> ResponseEvent:
        return {"type": f"{self.events}.done", **self._place(), "text": self.text}


class MessageWriter(_PartWriter):
    events = "response.output_text"

    def __init__(self, index: int) -> None:
        super().__init__("message", index)
        self.logprobs: list[dict[str, Any]] = []

    def snapshot(self, status: str) -> dict[str, Any]:
        item = {"id": self.id, "type": self.kind, "role": "assistant", "status": status}
        return item | {"content": self.parts()}

    def part(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": self.text, "annotations": []}
        return part | {"logprobs": self.logprobs}

    def _done_event(self) -> ResponseEvent:
        return super()._done_event() | {"logprobs": self.logprobs}


class ReasoningWriter(_PartWriter):
    """Writes raw reasoning."""

    events = "response.reasoning_text"

    def __init__(self, index: int, encrypt: Callable[[str], str] | None) -> None:
        super().__init__("reasoning", index)
        self._encrypt = encrypt

    def snapshot(self, status: str) -> dict[str, Any]:
        item = {"id": self.id, "type": self.kind, **self._text_members(), "status": status}
        if self._encrypt is None or status == "in_progress":
            return item
        return item | {"encrypted_content": self._encrypt(self.text)}

    def _text_members(self) -> dict[str, Any]:
        return {"summary": [], "content": self.parts()}

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class SummaryWriter(ReasoningWriter):
    """Writes reasoning as a summary, for clients that request one and ignore raw reasoning."""

    events = "response.reasoning_summary_text"
    part_events = "response.reasoning_summary_part"
    at = "summary_index"

    def _text_members(self) -> dict[str, Any]:
        return {"summary": self.parts()}

    def part(self) -> dict[str, Any]:
        return {"type": "summary_text", "text": self.text}


def make_reasoning_writer(index: int, thinking: ReasoningStyle) -> ReasoningWriter:
    kind = SummaryWriter if thinking.summary else ReasoningWriter
    return kind(index, thinking.encrypt)
