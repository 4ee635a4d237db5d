"""Our requests and steps as vLLM's ``/inference/v1/generate`` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from engine.remote.reading import (
    WorkerProtocolError,
    read_integer,
    read_list,
    read_number,
    read_object,
)
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
MOST_ALTERNATIVES = 256
MOST_ID = (1 << 31) - 1
MOST_LOGPROBS = 20
"""What a vLLM server allows unless it was started with another ``--max-logprobs``."""
FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


def build_body(request: EngineRequest, *, stream: bool, depth: bool) -> dict[str, Any]:
    """What to POST; with ``depth`` the worker honours one per request."""
    said: dict[str, Any] = {
        "request_id": request.id,
        "token_ids": request.prompt,
        "sampling_params": build_sampling_params(request, depth=depth),
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


def build_sampling_params(request: EngineRequest, *, depth: bool) -> dict[str, Any]:
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
        "allowed_token_ids": s.allowed_token_ids or None,
        "bad_words": s.bad_words or None,
        "thinking_token_budget": s.thinking_token_budget,
        "repetition_detection": None if s.repetition is None else asdict(s.repetition),
        "stop_token_ids": s.stop_token_ids or None,
        "logprobs": _logprobs(s),
        "prompt_logprobs": s.prompt_logprobs,
        "structured_outputs": build_structured_outputs(request.constraint),
        "extra_args": {DEPTH: request.depth} if depth and request.depth is not None else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _logprobs(sampling: Sampling) -> int | None:
    """One more than asked for: the server counts the chosen token among them."""
    asked = sampling.logprobs
    return asked + 1 if asked and sampling.temperature > 0 and asked < MOST_LOGPROBS else asked


def build_structured_outputs(constraint: Constraint | None) -> dict[str, Any] | None:
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


def read_output_logprobs(said: Any, top: int | None, tokens: int) -> tuple[PositionLogprobs, ...]:
    """Of one chunk's ``tokens``; ``top`` as the request asked for. Raises WorkerProtocolError."""
    if said is None or top is None:
        return ()
    content = read_list(read_object(said, "logprobs").get("content"), "logprobs.content", tokens)
    if len(content) != tokens:
        raise WorkerProtocolError(f"{tokens} tokens came with {len(content)} log probabilities")
    return tuple(
        _output_position(read_object(entry, "a log probability"), top) for entry in content
    )


def _output_position(said: Mapping[str, Any], top: int) -> PositionLogprobs:
    listed = read_list(said.get("top_logprobs"), "top_logprobs", MOST_ALTERNATIVES)
    others = (_logprob(read_object(entry, "a top log probability")) for entry in listed)
    return PositionLogprobs(_logprob(said), _most_likely(others, top))


def read_prompt_logprobs(
    token_ids: Sequence[int], said: Any, top: int | None
) -> tuple[PositionLogprobs | None, ...] | None:
    """Raises WorkerFault."""
    if not said or top is None:
        return None
    entries = read_list(said, "prompt_logprobs", len(token_ids))
    if len(entries) != len(token_ids):
        raise WorkerProtocolError(f"{len(token_ids)} tokens have {len(entries)} prompt_logprobs")
    return tuple(
        None if entry is None else _of_prompt(token, read_object(entry, "a prompt logprob"), top)
        for token, entry in zip(token_ids, entries, strict=True)
    )


def _of_prompt(token: int, said: Mapping[str, Any], top: int) -> PositionLogprobs:
    if len(said) > MOST_ALTERNATIVES or str(token) not in said:
        raise WorkerProtocolError("a prompt logprob lacks its token, or has too many others")
    entries = {
        id_: _logprob({**read_object(entry, "a prompt logprob"), "token_id": _id_of(id_)})
        for id_, entry in said.items()
    }
    return PositionLogprobs(entries[str(token)], _most_likely(entries.values(), top))


def _id_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise WorkerProtocolError("a prompt logprob is named by something that is no token id")
    return int(text)


def _logprob(said: Mapping[str, Any]) -> TokenLogprob:
    rank = said.get("rank")
    return TokenLogprob(
        read_integer(said.get("token_id"), "token_id", 0, MOST_ID),
        read_number(said.get("logprob"), "logprob"),
        None if rank is None else read_integer(rank, "rank", 0, MOST_ID),
    )


def _most_likely(entries: Iterable[TokenLogprob], top: int) -> tuple[TokenLogprob, ...]:
    ranked = sorted(entries, key=lambda entry: entry.rank or 0)
    return tuple(entry for entry in ranked if (entry.rank or 0) <= top)
