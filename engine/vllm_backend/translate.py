"""Our requests, tokens and errors in vLLM's words and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
    Constraint,
    EngineRequest,
    FinishReason,
    PositionLogprobs,
    RepetitionStop,
    TokenLogprob,
)
from engine.vllm_backend.names import DEPTH, KEEP

FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


def sampling_params(request: EngineRequest) -> SamplingParams:
    """Tokens out, as deltas; text and stop strings are the gateway's business."""
    s = request.sampling
    return SamplingParams(
        max_tokens=s.max_tokens,
        min_tokens=s.min_tokens,
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        seed=s.seed,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        logit_bias=dict(s.logit_bias) or None,
        allowed_token_ids=list(s.allowed_token_ids) or None,
        bad_words=list(s.bad_words) or None,
        thinking_token_budget=s.thinking_token_budget,
        repetition_detection=repetition_detection(s.repetition),
        stop_token_ids=list(s.stop_token_ids) or None,
        ignore_eos=s.ignore_eos,
        logprobs=s.logprobs,
        prompt_logprobs=s.prompt_logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=structured_outputs(request.constraint),
        extra_args=_depth(request),
    )


def repetition_detection(wanted: RepetitionStop | None) -> RepetitionDetectionParams | None:
    return None if wanted is None else RepetitionDetectionParams(**asdict(wanted))


def _depth(request: EngineRequest) -> dict[str, int] | None:
    if request.depth is None:
        return None
    return {DEPTH: request.depth} | ({KEEP: True} if request.keeps_depth else {})


def structured_outputs(constraint: Constraint | None) -> StructuredOutputsParams | None:
    if constraint is None:
        return None
    match constraint.kind:
        case "json_schema":
            return StructuredOutputsParams(json=constraint.value)
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "choice":
            return StructuredOutputsParams(choice=list(constraint.choices))
        case kind:
            return StructuredOutputsParams(**{kind: constraint.value})


def reasoning_ended(constraint: Constraint | None) -> bool | None:
    """True constrains from the first token; None lets vLLM wait for the end of the reasoning."""
    return None if constraint is None or constraint.after_reasoning else True


Alternatives = Mapping[int, Any]
"""vLLM's log probabilities of one position: token id -> (logprob, rank)."""


def position_logprobs(token_id: int, given: Alternatives, top: int) -> PositionLogprobs:
    """``given`` holds the chosen token and the ``top`` most likely, in no promised order."""
    ranked = sorted(
        (TokenLogprob(token, entry.logprob, entry.rank) for token, entry in given.items()),
        key=lambda entry: entry.rank or 0,
    )
    chosen = given[token_id]
    return PositionLogprobs(
        chosen=TokenLogprob(token_id, chosen.logprob, chosen.rank),
        top=tuple(entry for entry in ranked if (entry.rank or 0) <= top),
    )


def output_logprobs(
    token_ids: Sequence[int], given: Sequence[Alternatives] | None, top: int | None
) -> tuple[PositionLogprobs, ...]:
    if given is None or top is None:
        return ()
    return tuple(
        position_logprobs(token, entry, top) for token, entry in zip(token_ids, given, strict=True)
    )


def prompt_logprobs(
    token_ids: Sequence[int], given: Sequence[Alternatives | None] | None, top: int | None
) -> tuple[PositionLogprobs | None, ...] | None:
    """None where there is nothing before the first token. vLLM hands them out once, then []."""
    if not given or top is None:
        return None
    return tuple(
        None if entry is None else position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, given, strict=True)
    )


def engine_error(error: Exception) -> EngineError:
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
