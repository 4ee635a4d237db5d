"""Events of a response as typed frames, or folded into one response.

Both use ``ResponseBuilder``, which has the items so far and yields API events. The stream numbers
and sends these events; the fold only reads the final state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from eaglegate.engine.events import Event, Finish, LogprobsDelta, StepsDelta
from eaglegate.engine.types import PositionLogprobs
from eaglegate.server.apis.responses.response_items import (
    CallWriter,
    ClientToolWriter,
    ItemWriter,
    MessageWriter,
    ReasoningStyle,
    ResponseEvent,
    make_reasoning_writer,
)
from eaglegate.server.apis.shared.response import EncodingContext, list_logprobs, timings_object
from eaglegate.server.apis.shared.steps import StepWriter
from eaglegate.server.errors import GatewayError
from eaglegate.server.generation.job import Job
from eaglegate.server.http.response import named_frame
from eaglegate.text.events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseBuilder:
    """The response so far. ``feed`` yields the API events that each parser event causes."""

    def __init__(self, job: Job, context: EncodingContext, thinking: ReasoningStyle) -> None:
        self._job = job
        self._context = context
        self._thinking = thinking
        self._done: list[dict[str, Any]] = []
        self._item: ItemWriter | None = None
        self._pending: list[PositionLogprobs] = []
        self._finish: Finish | None = None
        self._writer = StepWriter(context)
        self._steps: list[dict[str, Any]] = []
        self._error: GatewayError | None = None
        self._completed_at: int | None = None
        self.stored = True
        """False if the response cannot be retrieved later; its ``store`` is then false, too."""
        self.status = "queued" if job.display.repeated.get("background") else "in_progress"

    def begin(self) -> Iterator[ResponseEvent]:
        yield {"type": "response.created", "response": self.response()}
        if self.status == "queued":
            yield {"type": "response.queued", "response": self.response()}
            self.status = "in_progress"
        yield {"type": "response.in_progress", "response": self.response()}

    def feed(self, event: Event) -> Iterator[ResponseEvent]:
        match event:
            case ContentDelta(text):
                yield from self._content(text)
            case ReasoningDelta(text):
                self._pending.clear()
                if self._job.display.include_reasoning:
                    yield from self._reasoning(text)
            case ToolCallStart(_, call_id, name, custom):
                self._pending.clear()
                yield from self._open(self._call_writer(call_id, name, custom))
            case ToolCallDelta(_, text):
                assert self._item is not None
                yield from self._item.extend(text)
            case ToolCallEnd():
                yield from self._close("completed")
            case LogprobsDelta(positions):
                self._pending.extend(positions)
            case StepsDelta():
                steps = self._writer.write(event)
                self._steps += steps
                yield {"type": "response.steps", "steps": steps}
            case Finish():
                cut = event.reason == "length"
                yield from self._close("incomplete" if cut else "completed")
                self._end("incomplete" if cut else "completed", event)
            case _:
                pass

    def fail(self, error: GatewayError) -> None:
        self._error = error
        self._settle("incomplete")
        self._end("failed", None)

    def cancel(self) -> None:
        self._settle("incomplete")
        self._end("cancelled", None)

    @property
    def last(self) -> ResponseEvent:
        """The event that ends the stream."""
        return {"type": f"response.{self.status}", "response": self.response()}

    def response(self) -> dict[str, Any]:
        """Return the response in its current state."""
        open_item = [self._item.snapshot("in_progress")] if self._item else []
        is_incomplete = self.status == "incomplete"
        body = {
            "id": self._job.id,
            "object": "response",
            "created_at": self._job.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self._error_object(),
            "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
            **self._job.display.repeated,
            "store": self.stored and self._job.display.repeated["store"],
            "output": [*self._done, *open_item],
            "usage": None if self._finish is None else _usage(self._finish),
        }
        if self._job.display.return_steps and self._finish is not None:
            body |= {"steps": self._steps, **timings_object({0: self._finish})}
        metrics = self._finish and self._context.metrics(self._job, self._finish)
        return body | {"metrics": metrics} if metrics else body

    @property
    def _next(self) -> int:
        """Output index of the next item."""
        return len(self._done) + (self._item is not None)

    def _call_writer(self, call_id: str, name: str, custom: bool) -> ItemWriter:
        if name in self._job.question.tool_policy.defined:
            return ClientToolWriter(name, self._next, call_id)
        kind = "custom_tool_call" if custom else "function_call"
        return CallWriter(kind, self._next, call_id, self._tool_name(name))

    def _tool_name(self, name: str) -> dict[str, str]:
        """Return the name of a called tool as the client wrote it."""
        namespace = self._job.question.tool_policy.namespaces.get(name)
        return (
            {"name": name}
            if namespace is None
            else {"namespace": namespace[0], "name": namespace[1]}
        )

    def _content(self, text: str) -> Iterator[ResponseEvent]:
        if not isinstance(self._item, MessageWriter):
            yield from self._close("completed")
            self._pending = _select_last(text, self._pending, self._context)
            yield from self._open(MessageWriter(self._next))
        assert isinstance(self._item, MessageWriter)
        logprobs = list_logprobs(self._pending, self._context) if self._pending else []
        self._pending.clear()
        self._item.logprobs.extend(logprobs)
        yield self._item.grow(text) | {"logprobs": logprobs}

    def _reasoning(self, text: str) -> Iterator[ResponseEvent]:
        if self._item is None or self._item.kind != "reasoning":
            yield from self._open(make_reasoning_writer(self._next, self._thinking))
        assert self._item is not None
        yield self._item.grow(text)

    def _open(self, item: ItemWriter) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._item = item
        snapshot = item.snapshot("in_progress")
        yield {"type": "response.output_item.added", "output_index": item.index, "item": snapshot}
        yield from item.start_events()

    def _close(self, status: str) -> Iterator[ResponseEvent]:
        item = self._item
        if item is None:
            return
        if isinstance(item, MessageWriter) and self._pending:
            item.logprobs.extend(list_logprobs(self._pending, self._context))
            self._pending.clear()
        yield from item.finish_events()
        snapshot = self._settle(status)
        yield {"type": "response.output_item.done", "output_index": item.index, "item": snapshot}

    def _settle(self, status: str) -> dict[str, Any] | None:
        """Close the open item and add it to the output."""
        if self._item is None:
            return None
        self._done.append(self._item.snapshot(status))
        self._item = None
        return self._done[-1]

    def _end(self, status: str, finish: Finish | None) -> None:
        self.status = status
        self._finish = finish
        self._completed_at = int(time.time()) if status == "completed" else None

    def _error_object(self) -> dict[str, str] | None:
        if self._error is None:
            return None
        code = ERROR_CODES.get(self._error.status, "server_error")
        return {"code": code, "message": str(self._error)}


def _select_last(
    text: str, positions: list[PositionLogprobs], context: EncodingContext
) -> list[PositionLogprobs]:
    """Return the last positions, as many as ``text`` needs: the earlier ones belong to a marker and
    white space.
    """
    length = len(text)
    for index in range(len(positions) - 1, -1, -1):
        length -= len(context.token(positions[index].chosen.token_id))
        if length <= 0:
            return positions[index:]
    return positions


def _usage(finish: Finish) -> dict[str, Any]:
    usage = finish.usage
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


class ResponseStream:
    """Numbers the events of ``ResponseBuilder`` and encodes them as frames named by type."""

    def __init__(self, job: Job, context: EncodingContext, thinking: ReasoningStyle) -> None:
        self.builder = ResponseBuilder(job, context, thinking)
        self._number = 0

    def encode(self, choice: int, events: list[Event]) -> bytes:
        return b"".join([*self.open(), *self.frames(choice, events)])

    def frames(self, choice: int, events: list[Event]) -> list[bytes]:  # noqa: ARG002
        """Return one frame per API event."""
        feed, frame = self.builder.feed, self._frame
        return [frame(out) for event in events for out in feed(event)]

    def close(self) -> bytes:
        return self._frame(self.builder.last)

    def fail(self, error: GatewayError) -> bytes:
        return b"".join([*self.open(), *self.fail_frames(error)])

    def fail_frames(self, error: GatewayError) -> list[bytes]:
        """Return an error event, then the failed response as the last event."""
        self.builder.fail(error)
        failure = {"type": "error", "code": error.code, "message": str(error), "param": error.param}
        return [self._frame(failure), self._frame(self.builder.last)]

    def open(self) -> list[bytes]:
        """Return the first frames of the stream; none after the first call."""
        return [] if self._number else [self._frame(event) for event in self.builder.begin()]

    def _frame(self, event: ResponseEvent) -> bytes:
        event["sequence_number"] = self._number
        self._number += 1
        return named_frame(event["type"], event)


class ResponseFold:
    """Folds events into one response."""

    def __init__(self, job: Job, context: EncodingContext, thinking: ReasoningStyle) -> None:
        self.builder = ResponseBuilder(job, context, thinking)
        self.builder.status = "in_progress"

    def add(self, choice: int, events: list[Event]) -> None:  # noqa: ARG002
        for event in events:
            for _ in self.builder.feed(event):
                pass

    def result(self) -> dict[str, Any]:
        return self.builder.response()
