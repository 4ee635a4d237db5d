"""Our requests and steps as vLLM's ``/inference/v1/generate`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.remote.reading import (
    WorkerProtocolError,
    read_integer,
    read_list,
    read_number,
    read_object,
)
from engine.types import (
    EngineRequest,
    PositionLogprobs,
    Sampling,
    TokenLogprob,
)
from engine.vllm_fields import DEPTH, build_sampling_fields, is_reasoning_ended, select_top

GENERATE = "/inference/v1/generate"
MOST_ALTERNATIVES = 256
MOST_ID = (1 << 31) - 1
MOST_LOGPROBS = 20
"""What a vLLM server allows unless it was started with another ``--max-logprobs``."""


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
    if is_reasoning_ended(request.constraint):
        said["reasoning_ended"] = True
    return said


def build_sampling_params(request: EngineRequest, *, depth: bool) -> dict[str, Any]:
    fields = build_sampling_fields(request)
    fields.pop("extra_args", None)
    if depth and request.depth is not None:
        fields["extra_args"] = {DEPTH: request.depth}
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"].items()}
    if _hides_alternative(request.sampling):
        fields["logprobs"] += 1
    return fields


def _hides_alternative(sampling: Sampling) -> bool:
    """The server counts the chosen token among the log probabilities asked for."""
    asked = sampling.logprobs
    return bool(asked) and sampling.temperature > 0 and (asked or 0) < MOST_LOGPROBS


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
    return PositionLogprobs(_logprob(said), select_top(others, top))


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
    return PositionLogprobs(entries[str(token)], select_top(entries.values(), top))


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
