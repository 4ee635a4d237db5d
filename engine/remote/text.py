"""Text engine for workers with text-only APIs (SGLang, TensorRT-LLM, llama.cpp, TGI, Ollama, ...).

It uses OpenAI's ``/v1/completions``, which all of them have, and probes at start which parts of it
the server supports (``Dialect``). Text is tokenized again, so that parsers see the tokens they
expect. The number of tokens that the worker generated and its speculation are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson

from eaglegate.engine.errors import EngineDead, EngineStartError, RequestRejected
from eaglegate.engine.remote.connection import REQUEST_ID, WorkerConnection, WorkerReply
from eaglegate.engine.remote.driver import RemoteEngineBase
from eaglegate.engine.remote.reading import (
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
from eaglegate.engine.remote.upstream import Codec, LocalModel
from eaglegate.engine.steps import put
from eaglegate.engine.types import (
    Constraint,
    EngineInfo,
    EngineRequest,
    Sampling,
    SpeculationInfo,
    Step,
    StepSink,
)
from eaglegate.engine.vllm_fields import ABORT
from eaglegate.text.events import FinishReason

FINISH = {"length": FinishReason.LENGTH, "limit": FinishReason.LENGTH}
"""Finish reasons for a limit. All other reasons mean a stop: ``eos_token``, ``stop_sequence``..."""
ANCHOR = "x"
LONGEST_TEXT = 1 << 20
"""Most characters in one chunk."""


class TextEngine(RemoteEngineBase):
    """Engine that exchanges text with one OpenAI-compatible server; see
    ``eaglegate.engine.base.Engine``."""

    async def _probe(self, connection: WorkerConnection, name: str, max_length: int) -> EngineInfo:
        self._name = name
        self._dialect = await detect_dialect(connection, self._model, name)
        return EngineInfo(
            model=name,
            max_model_len=max_length,
            vocab_size=self._model.vocab_size,
            speculation=SpeculationInfo(
                "unknown", 0, summary="unknown: the worker speaks text only", per_request=False
            ),
            reports_decode_steps=False,
            thinking_budget=False,
            default_sampling=self._model.default_sampling,
            details={"worker": str(self._upstream), "dialect": self._dialect.summary},
        )

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        connection = self._require_connection()
        self._check_supported(request)
        limits = compute_limits(request, text=True)
        body = self._build_body(request)
        headers = {**request.trace_headers, REQUEST_ID: request.id}
        finish, budget = None, limits.tokens
        async with aclosing(connection.stream(COMPLETIONS, body, headers, limits)) as payloads:
            async for payload in payloads:
                for choice in read_choices(payload):
                    token_ids = encode_text(read_text(choice), self._model.codec)
                    finish = _read_finish(choice) or finish
                    budget -= len(token_ids)
                    if budget < 0:
                        raise WorkerProtocolError(f"{self._upstream} sent more than was asked for.")
                    if token_ids:
                        await put(Step(token_ids), sink)
        if finish is None:
            raise EngineDead("The worker ended its stream before the answer.")
        await put(Step((), finish=finish), sink)

    def _check_supported(self, request: EngineRequest) -> None:
        """Refuse features that are not possible with text alone. Raises RequestRejected."""
        sampling, constraint = request.sampling, request.constraint
        if request.images:
            raise RequestRejected(
                "Images are not available: the worker behind this gateway speaks text only.",
                param="images",
            )
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
        if constraint is not None and not self._dialect.supports(constraint):
            raise RequestRejected(
                f"The worker behind this gateway speaks text only and cannot be held to a "
                f"{constraint.kind}{' after its reasoning' if constraint.after_reasoning else ''}."
            )

    def _build_body(self, request: EngineRequest) -> dict[str, Any]:
        prompt: Any = request.prompt
        if not self._dialect.takes_tokens:
            prompt = _write_prompt(request.prompt, self._model.codec)
        body = {"model": self._name, "prompt": prompt, "stream": True}
        body |= build_sampling(request.sampling) | self._dialect.extras
        if request.constraint is not None:
            body["response_format"] = build_response_format(request.constraint)
        return body


def build_sampling(sampling: Sampling) -> dict[str, Any]:
    """Return only the fields that differ from the defaults, because servers may not know every
    field."""
    body: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    defaults = Sampling(max_tokens=0)
    names = (
        "min_tokens", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "ignore_eos", "stop_token_ids",
    )  # fmt: skip
    for name in names:
        value = getattr(sampling, name)
        if value != getattr(defaults, name):
            body[name] = value
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    return body


def build_response_format(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind == "json_object":
        return {"type": "json_object"}
    return build_json_schema(constraint.value)


def _write_prompt(token_ids: Sequence[int], codec: Codec) -> str:
    """Decode the prompt to text. Raises RequestRejected if a message spells a special token."""
    text = codec.decode(token_ids)
    if codec.spells_special_tokens(text, token_ids):
        raise RequestRejected(
            "A message spells a special token of this model, and the worker behind this gateway "
            "speaks text only, so that it would read the token. Leave it out; "
            "--special-tokens-in-messages parse accepts it as the token."
        )
    return text


def encode_text(text: str, codec: Codec) -> tuple[int, ...]:
    """Return the token ids of a text that is part of a longer one."""
    if not text:
        return ()
    token_ids = codec.encode(text, False)
    if codec.decode(token_ids) == text:
        return tuple(token_ids)
    anchor, anchored_ids = codec.encode(ANCHOR, False), codec.encode(ANCHOR + text, False)
    is_separable = anchored_ids[: len(anchor)] == anchor  # sentencepiece prepends a space to a text
    return tuple(anchored_ids[len(anchor) :] if is_separable else token_ids)


def read_choices(payload: Any) -> list[Mapping[str, Any]]:
    """Return the choices of a chunk. Raises WorkerProtocolError."""
    body = read_object(payload, "a chunk").get("choices")
    return [read_object(entry, "a choice") for entry in read_list(body, "choices", 1)]


def read_text(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice. Raises WorkerProtocolError."""
    return read_string(choice.get("text") or "", "text", LONGEST_TEXT)


def _read_finish(choice: Mapping[str, Any]) -> FinishReason | None:
    reason = choice.get("finish_reason")
    if not reason:
        return None
    if reason == ABORT:
        raise EngineDead("The worker ended the request before its answer was complete.")
    return FINISH.get(read_string(reason, "finish_reason", 100), FinishReason.STOP)


COMPLETIONS = "/v1/completions"
PROBE = "The first of them was a short one, and so it goes on until"
WORD = "eaglegate"
GENERATE_S = 120.0
AS_IT_IS = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""Fields of vLLM and SGLang that keep special tokens in the text, for the parsers."""
UNTOUCHED = {"add_special_tokens": False}
"""Field against a second set of special tokens. A rendered prompt already has its own."""
MOST_TOKENS = 1 << 20
SPARE = 1
"""Tolerance for a beginning-of-sequence token, which not every server counts."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The features of /v1/completions that the server supports."""

    takes_tokens: bool = False
    """True if the worker accepts a prompt as token ids, so that tokenizers cannot disagree."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Fields sent with every request."""
    enforces_json: bool = False
    """True if the worker obeyed ``response_format`` in the probe."""

    def supports(self, constraint: Constraint) -> bool:
        json = constraint.kind in ("json_schema", "json_object")
        return json and self.enforces_json and not constraint.after_reasoning

    @property
    def summary(self) -> str:
        prompt = "prompts as token ids" if self.takes_tokens else "prompts as text"
        special = "special tokens kept" if self.extras else "special tokens unknown"
        return f"{prompt}, {special}, {'JSON schemas' if self.enforces_json else 'no constraints'}"


async def detect_dialect(connection: WorkerConnection, model: LocalModel, name: str) -> Dialect:
    """Probe which features the server supports. Raises EngineStartError."""
    token_ids = model.codec.encode(PROBE, False)
    attempts: tuple[tuple[str | list[int], dict[str, Any]], ...] = (
        (token_ids, AS_IT_IS),
        (token_ids, {}),
        (PROBE, AS_IT_IS | UNTOUCHED),
        (PROBE, {}),
    )
    refusal = ""
    for prompt, extras in attempts:
        body = {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **extras}
        answer = await connection.ask(COMPLETIONS, body, GENERATE_S)
        if answer.ok:
            _check_length(answer, len(token_ids), connection, model)
            holds = await _probe_json(connection, body)
            return Dialect(not isinstance(prompt, str), extras, holds)
        refusal = f"{answer.status}: {extract_message(answer.body)}"
    raise EngineStartError(f"{connection.upstream}{COMPLETIONS} does not generate: {refusal}")


def _check_length(
    answer: WorkerReply, local_tokens: int, connection: WorkerConnection, model: LocalModel
) -> None:
    """Check that the prompt reached the model unchanged. Raises EngineStartError."""
    body = read_object(read_json(answer.body, "the answer"), "the answer")
    usage_tokens = read_optional_object(body.get("usage"), "usage").get("prompt_tokens")
    if usage_tokens is None:
        return
    worker_tokens = read_integer(usage_tokens, "prompt_tokens", 0, MOST_TOKENS)
    if abs(worker_tokens - local_tokens) > SPARE:
        raise EngineStartError(
            f"{connection.upstream} makes {worker_tokens} tokens of a prompt that is "
            f"{local_tokens} for {model.name}: it has another tokenizer, or puts prompts into a "
            "template of its own (as Ollama does, unless the model's TEMPLATE is {{ .Prompt }})."
        )


async def _probe_json(connection: WorkerConnection, body_template: Mapping[str, Any]) -> bool:
    schema = orjson.dumps({"enum": [WORD]}).decode()
    probe_body = {**body_template, "max_tokens": 24, "response_format": build_json_schema(schema)}
    answer = await connection.ask(COMPLETIONS, probe_body, GENERATE_S)
    if not answer.ok:
        return False
    body = read_object(read_json(answer.body, "the answer"), "the answer")
    choices = read_list(body.get("choices"), "choices", 1)
    texts = (read_object(choice, "a choice").get("text") for choice in choices)
    return any(str(text).strip() == f'"{WORD}"' for text in texts)


def build_json_schema(schema: str) -> dict[str, Any]:
    definition = {"name": "answer", "schema": orjson.loads(schema), "strict": True}
    return {"type": "json_schema", "json_schema": definition}
