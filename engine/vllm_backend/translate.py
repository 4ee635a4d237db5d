"""Our requests, tokens and errors in vLLM's words and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine.exceptions import EngineDeadError

from engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    RequestRejected,
)
from engine.types import (
    EngineRequest,
    PositionLogprobs,
    TokenLogprob,
)
from engine.vllm_fields import build_sampling_fields, select_top


def make_sampling_params(request: EngineRequest) -> SamplingParams:
    """Tokens out, as deltas."""
    fields = build_sampling_fields(request)
    if "repetition_detection" in fields:
        repetition = RepetitionDetectionParams(**fields["repetition_detection"])
        fields["repetition_detection"] = repetition
    if "structured_outputs" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
    return SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)


Alternatives = Mapping[int, Any]
"""vLLM's log probabilities of one position: token id -> (logprob, rank)."""


def convert_position_logprobs(token_id: int, given: Alternatives, top: int) -> PositionLogprobs:
    """``given`` holds the chosen token and the ``top`` most likely, in no promised order."""
    chosen = given[token_id]
    return PositionLogprobs(
        chosen=TokenLogprob(token_id, chosen.logprob, chosen.rank),
        top=select_top(
            (TokenLogprob(token, entry.logprob, entry.rank) for token, entry in given.items()), top
        ),
    )


def convert_output_logprobs(
    token_ids: Sequence[int], given: Sequence[Alternatives] | None, top: int | None
) -> tuple[PositionLogprobs, ...]:
    if given is None or top is None:
        return ()
    return tuple(
        convert_position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, given, strict=True)
    )


def convert_prompt_logprobs(
    token_ids: Sequence[int], given: Sequence[Alternatives | None] | None, top: int | None
) -> tuple[PositionLogprobs | None, ...] | None:
    """None where there is nothing before the first token. vLLM hands them out once, then []."""
    if not given or top is None:
        return None
    return tuple(
        None if entry is None else convert_position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, given, strict=True)
    )


def convert_error(error: Exception) -> EngineError:
    """vLLM's error as one of ours. Messages of unknown errors stay inside: they may hold text."""
    match error:
        case EngineError():
            return error
        case EngineDeadError():
            return EngineDead("The engine died while it was generating.")
        case VLLMClientError():
            message = str(error.args[0]) if error.args else type(error).__name__
            return RequestRejected(message, param=getattr(error, "parameter", None))
        case GracefulHTTPError():
            return EngineOverloaded(error.message)
        case _:
            return EngineFailed(f"The engine failed on this request ({type(error).__name__}).")
