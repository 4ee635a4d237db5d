"""Our requests and steps as vLLM's ``/inference/v1/generate`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.types import (
    Constraint,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    Sampling,
    TokenLogprob,
)

GENERATE = "/inference/v1/generate"
DEPTH = "num_speculative_tokens"
"""A request's depth in ``extra_args``, as ``engine.vllm_backend.scheduler`` reads it."""
MOST_LOGPROBS = 20
"""What a vLLM server allows unless it was started with another ``--max-logprobs``."""
FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


def body(request: EngineRequest, *, stream: bool, depth: bool) -> dict[str, Any]:
    """What to POST; with ``depth`` the worker honours one per request."""
    said: dict[str, Any] = {
        "request_id": request.id,
        "token_ids": request.prompt,
        "sampling_params": sampling_params(request, depth=depth),
        "stream": stream,
    }
    if stream:
        said["stream_options"] = {"include_usage": True}
    if request.cache_salt is not None:
        said["cache_salt"] = request.cache_salt
    if request.priority:
        said["priority"] = request.priority
    if request.constraint is not None and not request.constraint.after_reasoning:
        said["reasoning_ended"] = True
    return said


def sampling_params(request: EngineRequest, *, depth: bool) -> dict[str, Any]:
    s = request.sampling
    said: dict[str, Any] = {
        "max_tokens": s.max_tokens,
        "min_tokens": s.min_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k,
        "min_p": s.min_p,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "repetition_penalty": s.repetition_penalty,
        "ignore_eos": s.ignore_eos,
        "detokenize": False,
        "seed": s.seed,
        "logit_bias": {str(token): bias for token, bias in s.logit_bias.items()} or None,
        "stop_token_ids": s.stop_token_ids or None,
        "logprobs": _logprobs(s),
        "prompt_logprobs": s.prompt_logprobs,
        "structured_outputs": structured_outputs(request.constraint),
        "extra_args": {DEPTH: request.depth} if depth and request.depth is not None else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _logprobs(sampling: Sampling) -> int | None:
    """One more than asked for: the server counts the chosen token among them."""
    asked = sampling.logprobs
    return asked + 1 if asked and sampling.temperature > 0 and asked < MOST_LOGPROBS else asked


def structured_outputs(constraint: Constraint | None) -> dict[str, Any] | None:
    if constraint is None:
        return None
    match constraint.kind:
        case "json_schema":
            return {"json": constraint.value}
        case "json_object":
            return {"json_object": True}
        case "choice":
            return {"choice": constraint.choices}
        case kind:
            return {kind: constraint.value}


def output_logprobs(
    said: Mapping[str, Any] | None, top: int | None
) -> tuple[PositionLogprobs, ...]:
    """Of one chunk's tokens; ``top`` as the request asked for."""
    if said is None or top is None:
        return ()
    return tuple(
        PositionLogprobs(_logprob(entry), _most_likely(map(_logprob, entry["top_logprobs"]), top))
        for entry in said["content"] or ()
    )


def prompt_logprobs(
    token_ids: Sequence[int], said: Sequence[Mapping[str, Any] | None] | None, top: int | None
) -> tuple[PositionLogprobs | None, ...] | None:
    if not said or top is None:
        return None
    return tuple(
        None if entry is None else _of_prompt(token, entry, top)
        for token, entry in zip(token_ids, said, strict=True)
    )


def _of_prompt(token: int, said: Mapping[str, Any], top: int) -> PositionLogprobs:
    entries = {
        int(id_): TokenLogprob(int(id_), entry["logprob"], entry.get("rank"))
        for id_, entry in said.items()
    }
    return PositionLogprobs(entries[token], _most_likely(entries.values(), top))


def _logprob(said: Mapping[str, Any]) -> TokenLogprob:
    return TokenLogprob(said["token_id"], said["logprob"], said.get("rank"))


def _most_likely(entries: Any, top: int) -> tuple[TokenLogprob, ...]:
    ranked = sorted(entries, key=lambda entry: entry.rank or 0)
    return tuple(entry for entry in ranked if (entry.rank or 0) <= top)
