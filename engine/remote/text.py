"""Text engine: workers that speak text only (SGLang, TensorRT-LLM, llama.cpp, TGI, Ollama, ...).

It uses OpenAI's ``/v1/completions``, which all of them have, and probes at start which parts of it
the server supports (``Dialect``). Text is tokenized again, so that parsers see the tokens they
expect. How many tokens the worker generated, and what it speculated, stays unknown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.errors import EngineDead, EngineStartError, RequestRejected
from engine.remote.connection import WorkerConnection, WorkerReply
from engine.remote.driver import RemoteEngineBase
from engine.remote.reading import (
    WorkerProtocolError,
    compute_limits,
    extract_message,
    read_integer,
    read_json,
    read_list,
    read_object,
    read_optional_object,
    read_string,
)
from engine.remote.upstream import Codec, LocalModel
from engine.types import (
    Constraint,
    EngineInfo,
    EngineRequest,
    FinishReason,
    Sampling,
    SpeculationInfo,
    Step,
)

FINISH = {"length": FinishReason.LENGTH, "limit": FinishReason.LENGTH, "abort": FinishReason.ABORT}
"""All other reasons are a stop by another name: ``eos_token``, ``stop_sequence``, ..."""
ANCHOR = "x"
LONGEST_TEXT = 1 << 20
"""Characters of one chunk."""


class TextEngine(RemoteEngineBase):
    """See ``engine.base.Engine``."""

    async def _meet(self, connection: WorkerConnection, name: str, longest: int) -> EngineInfo:
        self._progress(f"finding out what {self._upstream} understands")
        self._name = name
        self._dialect = await detect_dialect(connection, self._model, name)
        return EngineInfo(
            model=name,
            max_model_len=longest,
            vocab_size=self._model.vocab_size,
            speculation=SpeculationInfo(
                "unknown", 0, summary="unknown: the worker speaks text only", per_request=False
            ),
            reports_decode_steps=False,
            thinking_budget=False,
            default_sampling=self._model.default_sampling,
            details={"worker": str(self._upstream), "dialect": self._dialect.described},
        )

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        connection = self._running()
        self._refuse(request)
        most = compute_limits(request, text=True)
        body, headers = self._body(request), request.trace_headers
        finish, left = None, most.tokens
        async with aclosing(connection.stream(COMPLETIONS, body, headers, most)) as payloads:
            async for payload in payloads:
                for choice in read_choices(payload):
                    token_ids = encode_text(read_text(choice), self._model.codec)
                    finish = _finish(choice) or finish
                    left -= len(token_ids)
                    if left < 0:
                        raise WorkerProtocolError(f"{self._upstream} sent more than was asked for.")
                    if token_ids:
                        yield Step(token_ids)
        if finish is None:
            raise EngineDead("The worker ended its stream before the answer.")
        yield Step((), finish=finish)

    def _refuse(self, request: EngineRequest) -> None:
        """What a text says nothing about. Raises RequestRejected."""
        sampling, constraint = request.sampling, request.constraint
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            raise RequestRejected(
                "Log probabilities are not available: the worker behind this gateway speaks text "
                "only. Ask without 'logprobs'.",
                param="logprobs",
            )
        for name in ("allowed_token_ids", "bad_words", "thinking_token_budget", "repetition"):
            if getattr(sampling, name) not in ((), None):
                raise RequestRejected(
                    f"'{name}' is not available: the worker behind this gateway speaks text only. "
                    f"Ask without '{name}'.",
                    param=name,
                )
        if constraint is not None and not self._dialect.can(constraint):
            raise RequestRejected(
                f"The worker behind this gateway speaks text only and cannot be held to a "
                f"{constraint.kind}{' after its reasoning' if constraint.after_reasoning else ''}."
            )

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        prompt: Any = request.prompt
        if not self._dialect.takes_tokens:
            prompt = self._model.codec.decode(request.prompt)
        said = {"model": self._name, "prompt": prompt, "stream": True}
        said |= build_sampling(request.sampling) | self._dialect.extras
        if request.constraint is not None:
            said["response_format"] = build_response_format(request.constraint)
        return said


def build_sampling(sampling: Sampling) -> dict[str, Any]:
    """Only what differs from everybody's default: not every server knows every name."""
    said: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    neutral = Sampling(max_tokens=0)
    names = (
        "min_tokens", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "ignore_eos", "stop_token_ids",
    )  # fmt: skip
    for name in names:
        value = getattr(sampling, name)
        if value != getattr(neutral, name):
            said[name] = value
    if sampling.logit_bias:
        said["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return said


def build_response_format(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind == "json_object":
        return {"type": "json_object"}
    return build_json_schema(constraint.value)


def encode_text(text: str, codec: Codec) -> tuple[int, ...]:
    """Token ids whose text this is, in the middle of a longer one."""
    if not text:
        return ()
    token_ids = codec.encode(text, False)
    if codec.decode(token_ids) == text:
        return tuple(token_ids)
    anchor, anchored = codec.encode(ANCHOR, False), codec.encode(ANCHOR + text, False)
    behind = anchored[: len(anchor)] == anchor  # sentencepiece puts a space before a beginning
    return tuple(anchored[len(anchor) :] if behind else token_ids)


def read_choices(payload: Any) -> list[Mapping[str, Any]]:
    """Raises WorkerFault."""
    said = read_object(payload, "a chunk").get("choices")
    return [read_object(entry, "a choice") for entry in read_list(said, "choices", 1)]


def read_text(choice: Mapping[str, Any]) -> str:
    """Raises WorkerFault."""
    return read_string(choice.get("text") or "", "text", LONGEST_TEXT)


def _finish(choice: Mapping[str, Any]) -> FinishReason | None:
    reason = choice.get("finish_reason")
    if not reason:
        return None
    return FINISH.get(read_string(reason, "finish_reason", 100), FinishReason.STOP)


COMPLETIONS = "/v1/completions"
PROBE = "The first of them was a short one, and so it goes on until"
WORD = "eaglegate"
GENERATE_S = 120.0
AS_IT_IS = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""vLLM's and SGLang's: markers that are special tokens stay in the text, where parsers look."""
UNTOUCHED = {"add_special_tokens": False}
"""A rendered prompt has its special tokens."""
MOST_TOKENS = 1 << 20
SPARE = 1
"""A beginning-of-sequence token may be counted or not."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the worker understands."""

    takes_tokens: bool = False
    """A prompt of token ids: no second tokenizer can differ."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Sent with every request."""
    holds_to_json: bool = False
    """``response_format`` is obeyed, which was tried."""

    def can(self, constraint: Constraint) -> bool:
        json = constraint.kind in ("json_schema", "json_object")
        return json and self.holds_to_json and not constraint.after_reasoning

    @property
    def described(self) -> str:
        prompt = "prompts as token ids" if self.takes_tokens else "prompts as text"
        special = "special tokens kept" if self.extras else "special tokens unknown"
        return f"{prompt}, {special}, {'JSON schemas' if self.holds_to_json else 'no constraints'}"


async def detect_dialect(connection: WorkerConnection, model: LocalModel, name: str) -> Dialect:
    """Raises EngineStartError."""
    token_ids = model.codec.encode(PROBE, False)
    attempts: tuple[tuple[str | list[int], dict[str, Any]], ...] = (
        (token_ids, AS_IT_IS),
        (token_ids, {}),
        (PROBE, AS_IT_IS | UNTOUCHED),
        (PROBE, {}),
    )
    refusal = ""
    for prompt, extras in attempts:
        asked = {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **extras}
        answer = await connection.ask(COMPLETIONS, asked, GENERATE_S)
        if answer.ok:
            _check_length(answer, len(token_ids), connection, model)
            holds = await _holds_to_json(connection, asked)
            return Dialect(not isinstance(prompt, str), extras, holds)
        refusal = f"{answer.status}: {extract_message(answer.body)}"
    raise EngineStartError(f"{connection.upstream}{COMPLETIONS} does not generate: {refusal}")


def _check_length(
    answer: WorkerReply, ours: int, connection: WorkerConnection, model: LocalModel
) -> None:
    """The prompt must have reached the model as it was. Raises EngineStartError."""
    said = read_object(read_json(answer.body, "the answer"), "the answer")
    counted = read_optional_object(said.get("usage"), "usage").get("prompt_tokens")
    if counted is None:
        return
    theirs = read_integer(counted, "prompt_tokens", 0, MOST_TOKENS)
    if abs(theirs - ours) > SPARE:
        raise EngineStartError(
            f"{connection.upstream} makes {theirs} tokens of a prompt that is {ours} for "
            f"{model.name}: it has another tokenizer, or puts prompts into a template of its own "
            "(as Ollama does, unless the model's TEMPLATE is {{ .Prompt }})."
        )


async def _holds_to_json(connection: WorkerConnection, asked: Mapping[str, Any]) -> bool:
    schema = orjson.dumps({"enum": [WORD]}).decode()
    wanted = {**asked, "max_tokens": 24, "response_format": build_json_schema(schema)}
    answer = await connection.ask(COMPLETIONS, wanted, GENERATE_S)
    if not answer.ok:
        return False
    said = read_object(read_json(answer.body, "the answer"), "the answer")
    choices = read_list(said.get("choices"), "choices", 1)
    texts = (read_object(choice, "a choice").get("text") for choice in choices)
    return any(str(text).strip() == f'"{WORD}"' for text in texts)


def build_json_schema(schema: str) -> dict[str, Any]:
    named = {"name": "answer", "schema": orjson.loads(schema), "strict": True}
    return {"type": "json_schema", "json_schema": named}
