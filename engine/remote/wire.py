"""Wire format of vLLM's ``/inference/v1/generate``: request bodies and log probabilities."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from eaglegate.engine.remote.reading import (
    WorkerProtocolError,
    read_integer,
    read_list,
    read_number,
    read_object,
)
from eaglegate.engine.types import EngineRequest, PositionLogprobs, Sampling, TokenLogprob
from eaglegate.engine.vllm_fields import build_sampling_fields, is_reasoning_ended, select_top
from eaglegate.text.media.image import Image

GENERATE = "/inference/v1/generate"
MOST_ALTERNATIVES = 256
MOST_ID = (1 << 31) - 1
MOST_LOGPROBS = 20
"""Most log probabilities that vLLM allows by default (``--max-logprobs``)."""


def build_body(request: EngineRequest, *, stream: bool, depth: bool) -> dict[str, Any]:
    """Return the request body. ``depth`` is True if the worker honours a depth per request."""
    body: dict[str, Any] = {
        "request_id": request.id,
        "token_ids": request.prompt,
        "sampling_params": build_sampling_params(request, depth=depth),
        "stream": stream,
    }
    if request.images:
        body["content_parts"] = [
            {"type": "image_url", "url": build_data_url(image)} for image in request.images
        ]
    if stream:
        body["stream_options"] = {"include_usage": True}
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    if request.priority:
        body["priority"] = request.priority
    if is_reasoning_ended(request.constraint):
        body["reasoning_ended"] = True
    return body


def build_data_url(image: Image) -> str:
    """Return the image as a URL that holds it. A worker would fetch any other URL."""
    return f"data:image/{image.format};base64,{b64encode(image.data).decode()}"


def build_sampling_params(request: EngineRequest, *, depth: bool) -> dict[str, Any]:
    fields = build_sampling_fields(request)
    extra = fields.pop("extra_args")
    if depth:
        fields["extra_args"] = extra
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in fields["logit_bias"].items()}
    if _hides_alternative(request.sampling):
        fields["logprobs"] += 1
    return fields


def _hides_alternative(sampling: Sampling) -> bool:
    """Return True if the server would return one alternative too few.

    It counts the chosen token among the requested log probabilities.
    """
    count = sampling.logprobs
    return bool(count) and sampling.temperature > 0 and (count or 0) < MOST_LOGPROBS


def read_output_logprobs(body: Any, top: int | None, tokens: int) -> tuple[PositionLogprobs, ...]:
    """Return the log probabilities of one chunk's ``tokens``, with ``top`` alternatives as
    requested.

    Raises WorkerProtocolError.
    """
    if body is None or top is None:
        return ()
    content = read_list(read_object(body, "logprobs").get("content"), "logprobs.content", tokens)
    if len(content) != tokens:
        raise WorkerProtocolError(f"{tokens} tokens came with {len(content)} log probabilities")
    return tuple(
        _read_output_position(read_object(entry, "a log probability"), top) for entry in content
    )


def _read_output_position(body: Mapping[str, Any], top: int) -> PositionLogprobs:
    entries = read_list(body.get("top_logprobs"), "top_logprobs", MOST_ALTERNATIVES)
    alternatives = (_read_logprob(read_object(entry, "a top log probability")) for entry in entries)
    return PositionLogprobs(_read_logprob(body), select_top(alternatives, top))


def read_prompt_logprobs(
    token_ids: Sequence[int], body: Any, top: int | None, first: int = 0
) -> tuple[PositionLogprobs | None, ...] | None:
    """Return the log probabilities of the prompt's tokens from the place ``first`` on.

    Raises WorkerProtocolError.
    """
    if not body or top is None:
        return None
    entries = read_list(body, "prompt_logprobs", len(token_ids))
    if len(entries) != len(token_ids):
        raise WorkerProtocolError(f"{len(token_ids)} tokens have {len(entries)} prompt_logprobs")
    return tuple(
        None
        if entry is None
        else _read_prompt_position(token, read_object(entry, "a prompt logprob"), top)
        for token, entry in zip(token_ids[first:], entries[first:], strict=True)
    )


def _read_prompt_position(token: int, body: Mapping[str, Any], top: int) -> PositionLogprobs:
    if len(body) > MOST_ALTERNATIVES or str(token) not in body:
        raise WorkerProtocolError("a prompt logprob lacks its token, or has too many alternatives")
    entries = {
        id_: _read_logprob(
            {**read_object(entry, "a prompt logprob"), "token_id": _read_token_id(id_)}
        )
        for id_, entry in body.items()
    }
    return PositionLogprobs(entries[str(token)], select_top(entries.values(), top))


def _read_token_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise WorkerProtocolError("a key of prompt_logprobs is not a token id")
    return int(text)


def _read_logprob(body: Mapping[str, Any]) -> TokenLogprob:
    rank = body.get("rank")
    return TokenLogprob(
        read_integer(body.get("token_id"), "token_id", 0, MOST_ID),
        read_number(body.get("logprob"), "logprob"),
        None if rank is None else read_integer(rank, "rank", 0, MOST_ID),
    )
