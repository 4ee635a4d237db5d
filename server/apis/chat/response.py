"""Chat completion events as chunks, or as one response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from eaglegate.engine.events import (
    Event,
    Finish,
    LogprobsDelta,
    PromptEcho,
    StepsDelta,
    TokensDelta,
    UsageDelta,
)
from eaglegate.engine.types import PositionLogprobs
from eaglegate.server.apis.shared.response import (
    EncodingContext,
    list_logprobs,
    list_prompt_logprobs,
    timings_object,
    usage_object,
    usage_tail,
)
from eaglegate.server.apis.shared.steps import StepWriter
from eaglegate.server.errors import GatewayError, openai_body
from eaglegate.server.generation.job import Job
from eaglegate.server.http.response import SSE_DONE, frame
from eaglegate.text.events import ContentDelta, Phase, ReasoningDelta, ToolCallDelta, ToolCallStart
from eaglegate.text.parsing.fold import AnswerFold

PLAIN: Final = b'},"logprobs":null,"finish_reason":null}]'
"""The rest of a chunk after a delta without further fields."""
FUNCTION_DELTA: Final = b'"tool_calls":[{"index":%d,"function":{"arguments":%b}}]'
CUSTOM_DELTA: Final = b'"tool_calls":[{"index":%d,"custom":{"input":%b}}]'


def call_object(start: ToolCallStart, text: str) -> dict[str, Any]:
    """Return a tool call with its arguments, or with the text of a custom tool."""
    if start.custom:
        return {"id": start.id, "type": "custom", "custom": {"name": start.name, "input": text}}
    function = {"name": start.name, "arguments": text}
    return {"id": start.id, "type": "function", "function": function}


def finish_fields(finish: Finish, job: Job, context: EncodingContext) -> dict[str, Any]:
    """Return the fields that end a choice. ``stop_reason`` is vLLM's: the client's stop that was
    found.
    """
    stop_token_ids = job.question.sampling.stop_token_ids
    is_requested = isinstance(finish.stop, str) or finish.stop in stop_token_ids
    fields: dict[str, Any] = {
        "finish_reason": finish.reason,
        "stop_reason": finish.stop if is_requested else None,
    }
    if (metrics := context.metrics(job, finish)) is not None:
        fields["metrics"] = metrics
    return fields


def prompt_fields(echo: PromptEcho, job: Job, context: EncodingContext) -> dict[str, Any]:
    """Return vLLM's ``prompt_token_ids``, ``prompt_text`` and ``prompt_logprobs``, as requested."""
    token_ids = echo.token_ids
    fields: dict[str, Any] = {}
    if job.display.return_token_ids:
        fields["prompt_token_ids"] = token_ids
    if job.display.returns_prompt_text:
        fields["prompt_text"] = context.text(token_ids)
    if job.display.wants_prompt_logprobs:
        fields["prompt_logprobs"] = list_prompt_logprobs(echo.logprobs, context)
    return fields


def end_stream(
    head: bytes, ends: Mapping[int, Finish], job: Job, context: EncodingContext
) -> bytes:
    """Return the last chunk, with usage and metrics if requested, and the end of the stream."""
    metrics = answer_metrics(list(ends.values()), job, context)
    if not (job.display.include_usage or metrics):
        return SSE_DONE
    last_chunk: dict[str, Any] = {"choices": [], **metrics}
    if job.display.include_usage:
        last_chunk["usage"] = usage_object(
            {i: end.usage for i, end in ends.items()}, job.question.n
        )
        last_chunk |= timings_object(ends)
    return head + b"," + orjson.dumps(last_chunk)[1:] + b"\n\n" + SSE_DONE


def answer_metrics(ends: list[Finish], job: Job, context: EncodingContext) -> dict[str, Any]:
    """Return the metrics member of an answer with one choice, which is where vLLM puts it."""
    metrics = context.metrics(job, ends[0]) if len(ends) == 1 else None
    return {} if metrics is None else {"metrics": metrics}


class ChatStream:
    """Encodes events as ``chat.completion.chunk`` frames.

    The parts common to all chunks are encoded once, so that a delta costs only one string.
    """

    def __init__(self, job: Job, context: EncodingContext) -> None:
        self._job = job
        self._context = context
        head = {
            "id": job.id,
            "object": "chat.completion.chunk",
            "created": job.created,
            "model": job.model,
            **job.display.repeated,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._tail = b',"usage":null}\n\n' if job.display.include_usage else b"}\n\n"
        self._plain = PLAIN + self._tail
        self._heads = [
            self._head + b',"choices":[{"index":%d,"delta":{' % index
            for index in range(job.question.num_choices)
        ]
        names = context.reasoning_fields if job.display.include_reasoning else ()
        self._reasoning = [orjson.dumps(name) + b":" for name in names]
        self._steps = [StepWriter(context) for _ in range(job.question.num_choices)]
        self._ends: dict[int, Finish] = {}
        self._opened: set[int] = set()
        self._custom: set[tuple[int, int]] = set()
        """Choice and index of each call of a custom tool."""

    def encode(self, choice: int, events: list[Event]) -> bytes:
        """Return the frames for one step of one choice; may be empty."""
        first_event = events[0]
        if (
            len(events) == 1
            and choice in self._opened
            and (delta := self._delta(choice, first_event))
        ):
            return self._heads[choice] + delta + self._plain
        if isinstance(first_event, UsageDelta):
            self._carry(first_event)
            events = events[1:]
        frames = [] if choice in self._opened else [self._opening(choice, events[0])]
        extra: dict[str, Any] = {}
        for event in events:
            if isinstance(event, Finish):
                self._ends[choice] = event
                extra |= finish_fields(event, self._job, self._context)
                frames.append(self._frame(choice, b"", extra))
                extra = {}
            elif delta := self._delta(choice, event):
                frames.append(self._frame(choice, delta, extra))
                extra = {}
            else:
                extra |= self._extra(choice, event)
        if extra:
            frames.append(self._frame(choice, b'"content":""', extra))
        return b"".join(frames)

    def close(self) -> bytes:
        """Return the bytes that end the stream once every choice has finished."""
        return end_stream(self._head, self._ends, self._job, self._context)

    def fail(self, error: GatewayError) -> bytes:
        """Return OpenAI's error object as a frame. SDKs raise it as an APIError."""
        return frame(openai_body(error)) + SSE_DONE

    def _carry(self, delta: UsageDelta) -> None:
        """Add the usage so far to the frames of this step."""
        self._tail = usage_tail(delta)
        self._plain = PLAIN + self._tail

    def _opening(self, choice: int, first_event: Event) -> bytes:
        self._opened.add(choice)
        context = self._context
        frame = self._heads[choice] + b'"role":"assistant","content":""' + PLAIN
        if isinstance(first_event, PromptEcho):
            frame += b"," + orjson.dumps(prompt_fields(first_event, self._job, context))[1:-1]
        return frame + self._tail

    def _delta(self, choice: int, event: Event) -> bytes:
        """Return the members of a delta object; empty for events without one."""
        match event:
            case ContentDelta(text):
                return b'"content":' + orjson.dumps(text)
            case ReasoningDelta(text):
                text_json = orjson.dumps(text)
                return b",".join([name + text_json for name in self._reasoning])
            case ToolCallDelta(index, text):
                member = CUSTOM_DELTA if (choice, index) in self._custom else FUNCTION_DELTA
                return member % (index, orjson.dumps(text))
            case ToolCallStart(index):
                if event.custom:
                    self._custom.add((choice, index))
                return b'"tool_calls":' + orjson.dumps([{"index": index, **call_object(event, "")}])
            case _:
                return b""

    def _extra(self, choice: int, event: Event) -> dict[str, Any]:
        """Return the fields that accompany the next delta of the same step."""
        match event:
            case LogprobsDelta(given):
                content = list_logprobs(given, self._context)
                return {"logprobs": {"content": content, "refusal": None}}
            case TokensDelta(token_ids):
                return {"token_ids": token_ids}
            case StepsDelta():
                return {"steps": self._steps[choice].write(event)}
            case _:
                return {}

    def _frame(self, choice: int, delta: bytes, extra: dict[str, Any]) -> bytes:
        if not extra:
            return self._heads[choice] + delta + self._plain
        fields = orjson.dumps({"logprobs": None, "finish_reason": None} | extra)[1:]
        return self._heads[choice] + delta + b"}," + fields + b"]" + self._tail


class _ChoiceFold:
    """Folds the events of one choice."""

    def __init__(self, context: EncodingContext) -> None:
        self.steps: list[dict[str, Any]] = []
        self._write = StepWriter(context).write
        self.answer = AnswerFold()
        self.logprobs: list[PositionLogprobs] = []
        self.token_ids: list[int] = []
        self.prompt = PromptEcho(())
        self.finish: Finish | None = None

    def add(self, event: Event) -> None:
        match event:
            case LogprobsDelta(positions):
                self.logprobs.extend(positions)
            case TokensDelta(token_ids):
                self.token_ids.extend(token_ids)
            case StepsDelta():
                self.steps += self._write(event)
            case PromptEcho():
                self.prompt = event
            case Finish():
                self.finish = event
            case _:
                self.answer.add(event)

    def message(self, reasoning_fields: tuple[str, ...]) -> dict[str, Any]:
        calls = self.answer.calls
        text = self.answer.text(Phase.CONTENT)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
        }
        if reasoning := self.answer.text(Phase.REASONING):
            message |= dict.fromkeys(reasoning_fields, reasoning)
        if calls:
            message["tool_calls"] = [call_object(call.start, call.text) for call in calls]
        return message


class ChatFold:
    """Folds events into one ``chat.completion``."""

    def __init__(self, job: Job, context: EncodingContext) -> None:
        self._job = job
        self._context = context
        self._choices = [_ChoiceFold(context) for _ in range(job.question.num_choices)]

    def add(self, choice: int, events: list[Event]) -> None:
        for event in events:
            self._choices[choice].add(event)

    def result(self) -> dict[str, Any]:
        """Return the response. Every choice must have finished."""
        job = self._job
        ends = {i: c.finish for i, c in enumerate(self._choices) if c.finish is not None}
        answer = {
            "id": job.id,
            "object": "chat.completion",
            "created": job.created,
            "model": job.model,
            **job.display.repeated,
            "choices": [self._choice(index, ends[index]) for index in range(len(self._choices))],
            "usage": usage_object({i: end.usage for i, end in ends.items()}, job.question.n),
            **timings_object(ends),
            **answer_metrics(list(ends.values()), job, self._context),
        }
        return answer | prompt_fields(self._choices[0].prompt, job, self._context)

    def _choice(self, index: int, end: Finish) -> dict[str, Any]:
        choice, context = self._choices[index], self._context
        fields = context.reasoning_fields if self._job.display.include_reasoning else ()
        out: dict[str, Any] = {
            "index": index,
            "message": choice.message(fields),
            "logprobs": None,
            **finish_fields(end, self._job, context),
        }
        if self._job.question.sampling.logprobs is not None:
            content = list_logprobs(choice.logprobs, context)
            out["logprobs"] = {"content": content, "refusal": None}
        if self._job.display.return_token_ids:
            out["token_ids"] = choice.token_ids
        if self._job.display.return_steps:
            out["steps"] = choice.steps
        return out
