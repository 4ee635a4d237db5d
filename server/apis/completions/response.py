"""Completion events as chunks, or as one response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from eaglegate.server.apis.chat.response import answer_metrics, end_stream, finish_fields
from eaglegate.server.apis.shared.response import (
    EncodingContext,
    list_prompt_logprobs,
    logprob_value,
    timings_object,
    usage_object,
    usage_tail,
)
from eaglegate.server.apis.shared.steps import StepWriter
from eaglegate.server.errors import GatewayError, openai_body
from eaglegate.server.generation.job import Display, Job
from eaglegate.server.http.response import SSE_DONE, frame
from eaglegate.text.events import ContentDelta

PLAIN: Final = b',"logprobs":null,"finish_reason":null}]'
"""The rest of a chunk after a text without further fields."""


@dataclass(slots=True)
class CompletionDelta:
    """The addition of one step to one choice."""

    texts: list[str] = field(default_factory=list)
    logprobs: dict[str, list[Any]] | None = None
    token_ids: list[int] | None = None
    steps: list[dict[str, Any]] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True)
class CompletionWriter:
    """Turns the events of one choice into deltas and tracks the text offset."""

    display: Display
    context: EncodingContext
    prompt: str | None
    """Text of the prompt, if it was given as text."""
    offset: int = field(default=0)
    steps: StepWriter = field(init=False)

    def __post_init__(self) -> None:
        self.steps = StepWriter(self.context)

    def write(self, events: Iterable[Event], delta: CompletionDelta) -> None:
        """Add the events of a step to ``delta`` in place, so that a whole answer takes linear
        time.
        """
        for event in events:
            match event:
                case ContentDelta(text):
                    delta.texts.append(text)
                case PromptEcho(token_ids, given):
                    self._write_prompt(token_ids, given, delta)
                case LogprobsDelta(positions):
                    ids = [position.chosen.token_id for position in positions]
                    self._write_logprobs(ids, positions, delta)
                case TokensDelta(token_ids):
                    delta.token_ids = delta.token_ids or []
                    delta.token_ids += token_ids
                case StepsDelta():
                    delta.steps = delta.steps or []
                    delta.steps += self.steps.write(event)
                case Finish():
                    delta.finish = event

    def _write_prompt(
        self,
        token_ids: tuple[int, ...],
        logprobs: Sequence[PositionLogprobs | None] | None,
        delta: CompletionDelta,
    ) -> None:
        if self.display.return_token_ids:
            delta.prompt_token_ids = token_ids
        if self.display.wants_prompt_logprobs:
            delta.prompt_logprobs = list_prompt_logprobs(logprobs, self.context)
        if self.display.echo:
            delta.texts.append(self.context.text(token_ids) if self.prompt is None else self.prompt)
            if logprobs is not None:
                self._write_logprobs(token_ids, logprobs, delta)

    def _write_logprobs(
        self,
        token_ids: Sequence[int],
        positions: Sequence[PositionLogprobs | None],
        delta: CompletionDelta,
    ) -> None:
        if delta.logprobs is None:
            names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
            delta.logprobs = {name: [] for name in names}
        out = delta.logprobs
        for token_id, position in zip(token_ids, positions, strict=True):
            text = self.context.token(token_id)
            out["text_offset"].append(self.offset)
            out["tokens"].append(text)
            out["token_logprobs"].append(position and logprob_value(position.chosen))
            out["top_logprobs"].append(position and self._top(position))
            self.offset += len(text)

    def _top(self, position: PositionLogprobs) -> dict[str, float]:
        alternatives = {self.context.token(t.token_id): logprob_value(t) for t in position.top}
        chosen = position.chosen
        return alternatives | {self.context.token(chosen.token_id): logprob_value(chosen)}


def _writers(job: Job, context: EncodingContext) -> list[CompletionWriter]:
    question = job.question
    texts = [source if isinstance(source, str) else None for source in question.prompts]
    if question.truncate_prompt is not None:
        texts = [None] * len(texts)
    return [
        CompletionWriter(job.display, context, texts[i // question.n])
        for i in range(question.num_choices)
    ]


def _choice(
    index: int, piece: CompletionDelta, job: Job, context: EncodingContext
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "index": index,
        "text": piece.text,
        "logprobs": piece.logprobs,
        "finish_reason": None,
    }
    if piece.finish is not None:
        out |= finish_fields(piece.finish, job, context)
    if piece.token_ids is not None:
        out["token_ids"] = piece.token_ids
    if piece.steps is not None:
        out["steps"] = piece.steps
    if piece.prompt_token_ids is not None:
        out["prompt_token_ids"] = piece.prompt_token_ids
    if piece.prompt_logprobs is not None:
        out["prompt_logprobs"] = piece.prompt_logprobs
    return out


def _head(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": "text_completion",
        "created": job.created,
        "model": job.model,
    }


class CompletionStream:
    """Encodes events as ``text_completion`` frames."""

    def __init__(self, job: Job, context: EncodingContext) -> None:
        self._job = job
        self._context = context
        self._writers = _writers(job, context)
        self._head = b"data: " + orjson.dumps(_head(job))[:-1]
        self._tail = b',"usage":null}\n\n' if job.display.include_usage else b"}\n\n"
        self._plain = PLAIN + self._tail
        self._heads = [
            self._head + b',"choices":[{"index":%d,"text":' % index
            for index in range(job.question.num_choices)
        ]
        self._ends: dict[int, Finish] = {}

    def encode(self, choice: int, events: list[Event]) -> bytes:
        if isinstance(events[0], UsageDelta):
            self._tail = usage_tail(events[0])
            self._plain = PLAIN + self._tail
            events = events[1:]
        if len(events) == 1 and isinstance(events[0], ContentDelta):
            return self._heads[choice] + orjson.dumps(events[0].text) + self._plain
        piece = CompletionDelta()
        self._writers[choice].write(events, piece)
        if piece.finish is not None:
            self._ends[choice] = piece.finish
        body = orjson.dumps([_choice(choice, piece, self._job, self._context)])
        return self._head + b',"choices":' + body + self._tail

    def close(self) -> bytes:
        return end_stream(self._head, self._ends, self._job, self._context)

    def fail(self, error: GatewayError) -> bytes:
        return frame(openai_body(error)) + SSE_DONE


class CompletionFold:
    """Folds events into one ``text_completion``."""

    def __init__(self, job: Job, context: EncodingContext) -> None:
        self._job = job
        self._context = context
        self._writers = _writers(job, context)
        self._pieces = [CompletionDelta() for _ in self._writers]
        self._choices: dict[int, orjson.Fragment] = {}
        """Encoded choices, which take a tenth of the memory of their log probabilities."""
        self._ends: dict[int, Finish] = {}

    def add(self, choice: int, events: list[Event]) -> None:
        piece = self._pieces[choice]
        self._writers[choice].write(events, piece)
        if piece.finish is not None:
            self._ends[choice] = piece.finish
            choice_json = orjson.dumps(_choice(choice, piece, self._job, self._context))
            self._choices[choice] = orjson.Fragment(choice_json)
            self._pieces[choice] = CompletionDelta()

    def result(self) -> dict[str, Any]:
        """Return the response. Every choice must have finished."""
        job, context = self._job, self._context
        ends = dict(sorted(self._ends.items()))
        return _head(job) | {
            "choices": [self._choices[index] for index in ends],
            "usage": usage_object({i: end.usage for i, end in ends.items()}, job.question.n),
            **timings_object(ends),
            **answer_metrics(list(ends.values()), job, context),
        }
