"""Message events as Anthropic's named frames, or as one message."""

from __future__ import annotations

from typing import Any, Final

import orjson

from eaglegate.engine.events import Event, Finish, PromptEcho, StepsDelta
from eaglegate.server.apis.shared.response import EncodingContext, timings_object
from eaglegate.server.apis.shared.steps import StepWriter
from eaglegate.server.errors import GatewayError, anthropic_body
from eaglegate.server.generation.job import Job
from eaglegate.server.http.response import named_frame
from eaglegate.text.events import ContentDelta, Phase, ReasoningDelta, ToolCallDelta, ToolCallStart
from eaglegate.text.parsing.fold import AnswerCall, AnswerFold, AnswerPart
from eaglegate.text.parsing.tools import parse_object

STOP_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
TEXT: Final[dict[str, Any]] = {"type": "text", "text": ""}
"""A text block without ``citations``: the AI SDK accepts a list or no member, but not null."""
THINKING: Final[dict[str, Any]] = {"type": "thinking", "thinking": "", "signature": ""}
SIGNATURE: Final = "ZWFnbGVnYXRl"
"""Signature of all thinking. Clients do not send thinking back without one; nothing reads it."""


def _message(job: Job, usage: dict[str, Any]) -> dict[str, Any]:
    """Return a message without content blocks."""
    return {
        "id": job.id,
        "type": "message",
        "role": "assistant",
        "model": job.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(prompt: int, cached_tokens: int, completion: int) -> dict[str, Any]:
    """Return the usage. Anthropic does not count cached tokens as input tokens."""
    return {
        "input_tokens": prompt - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": completion,
    }


def _final_usage(finish: Finish) -> dict[str, Any]:
    usage = finish.usage
    return _usage(usage.prompt, usage.cached, usage.completion)


def _end(finish: Finish) -> dict[str, Any]:
    if isinstance(finish.stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop}
    return {"stop_reason": STOP_REASONS[finish.reason], "stop_sequence": None}


def _tool_use(start: ToolCallStart) -> dict[str, Any]:
    return {"type": "tool_use", "id": start.id, "name": start.name, "input": {}}


class MessageStream:
    """Encodes events as Anthropic's named frames. Blocks open and close as the kind of event
    changes.
    """

    def __init__(self, job: Job, context: EncodingContext) -> None:
        self._job = job
        self._context = context
        self._index = -1
        self._open: type[Event] | None = None
        self._delta = b""
        self._begun = False
        self._steps = StepWriter(context)

    def encode(self, choice: int, events: list[Event]) -> bytes:  # noqa: ARG002
        return b"".join([self._encode(event) for event in events])

    def close(self) -> bytes:
        return b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    def fail(self, error: GatewayError) -> bytes:
        """Return Anthropic's error event, which ends the stream."""
        return named_frame("error", anthropic_body(error))

    def _encode(self, event: Event) -> bytes:
        match event:
            case ContentDelta(text):
                opening = b"" if self._open is ContentDelta else self._start(ContentDelta, TEXT)
                return opening + self._delta + orjson.dumps(text) + b"}}\n\n"
            case ReasoningDelta(text):
                opening = (
                    b"" if self._open is ReasoningDelta else self._start(type(event), THINKING)
                )
                return opening + self._delta + orjson.dumps(text) + b"}}\n\n"
            case ToolCallDelta(_, arguments):
                return self._delta + orjson.dumps(arguments) + b"}}\n\n"
            case ToolCallStart():
                return self._start(ToolCallDelta, _tool_use(event))
            case PromptEcho(num_tokens=num_prompt, cached=cached):
                message = _message(self._job, _usage(num_prompt, cached, 0))
                start = {"type": "message_start", "message": message}
                return named_frame("message_start", start)
            case Finish():
                return self._stop() + self._finish(event)
            case StepsDelta():
                return named_frame("steps", {"type": "steps", "steps": self._steps.write(event)})
            case _:
                return b""

    def _start(self, kind: type[Event], block: dict[str, Any]) -> bytes:
        stop = self._stop()
        self._index += 1
        self._open = kind
        self._delta = _delta_prefix(kind, self._index)
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return stop + named_frame("content_block_start", start)

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open is ReasoningDelta:
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signature_event = {"type": "content_block_delta", "index": self._index, "delta": delta}
            signature = named_frame("content_block_delta", signature_event)
        self._open = None
        stop = {"type": "content_block_stop", "index": self._index}
        return signature + named_frame("content_block_stop", stop)

    def _finish(self, finish: Finish) -> bytes:
        delta = {"type": "message_delta", "delta": _end(finish), "usage": _final_usage(finish)}
        if (metrics := self._context.metrics(self._job, finish)) is not None:
            delta["metrics"] = metrics
        if self._job.display.return_steps:
            delta |= timings_object({0: finish})
        return named_frame("message_delta", delta)


def _delta_prefix(kind: type[Event], index: int) -> bytes:
    """Return a content_block_delta frame up to its text."""
    names = {
        ContentDelta: ("text_delta", "text"),
        ReasoningDelta: ("thinking_delta", "thinking"),
        ToolCallDelta: ("input_json_delta", "partial_json"),
    }
    name, member = names[kind]
    return (
        b"event: content_block_delta\n"
        b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
        % (index, name.encode(), member.encode())
    )


class MessageFold:
    """Folds events into one message."""

    def __init__(self, job: Job, context: EncodingContext) -> None:
        self._job = job
        self._context = context
        self._answer = AnswerFold()
        self._finish: Finish | None = None
        self._writer = StepWriter(context)
        self._steps: list[dict[str, Any]] = []

    def add(self, choice: int, events: list[Event]) -> None:  # noqa: ARG002
        for event in events:
            if isinstance(event, Finish):
                self._finish = event
            elif isinstance(event, StepsDelta):
                self._steps += self._writer.write(event)
            else:
                self._answer.add(event)

    def result(self) -> dict[str, Any]:
        """Return the message. The answer must have finished."""
        finish = self._finish
        assert finish is not None
        content = [_block(part) for part in self._answer.parts]
        message = _message(self._job, _final_usage(finish)) | {"content": content}
        if (metrics := self._context.metrics(self._job, finish)) is not None:
            message["metrics"] = metrics
        if self._job.display.return_steps:
            message |= {"steps": self._steps, **timings_object({0: finish})}
        return message | _end(finish)


def _block(part: AnswerPart) -> dict[str, Any]:
    """Return a content block. Arguments that are not a JSON object are delivered as text in
    ``raw_arguments``.
    """
    if isinstance(part, AnswerCall):
        arguments = parse_object(part.text)
        tool_input = {"raw_arguments": part.text} if arguments is None else arguments
        return _tool_use(part.start) | {"input": tool_input}
    if part.phase is Phase.REASONING:
        return THINKING | {"thinking": part.text, "signature": SIGNATURE}
    return TEXT | {"text": part.text}
