"""Translation between vLLM and eaglegate: configuration, requests, logprobs, accounts and
errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from vllm.config import VllmConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMError
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.exceptions import EngineDeadError

from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    RequestRejected,
)
from eaglegate.engine.speculation.accounts.accounting import intern_step
from eaglegate.engine.speculation.drafts.lossy import add_lossy, find_lossy
from eaglegate.engine.speculation.drafts.methods import find_method
from eaglegate.engine.types import (
    DecodeStep,
    Drafter,
    EngineInfo,
    EngineRequest,
    PositionLogprobs,
    SpeculationInfo,
    TokenLogprob,
    UndraftedReason,
)
from eaglegate.engine.vllm_backend.class_names import SCHEDULER, WORKER
from eaglegate.engine.vllm_backend.engine_plugin import list_engine_plugins
from eaglegate.engine.vllm_contract import get_vllm_version, read_draft_depth
from eaglegate.engine.vllm_fields import (
    DEPTH_BITS,
    build_sampling_fields,
    is_reasoning_ended,
    select_top,
    unpack_depth,
)

log = logging.getLogger(__name__)

ABORTED = "The engine ended the request before its answer was complete."
SAMPLING_DEFAULTS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens",
)  # fmt: skip


def describe_engine(config: VllmConfig) -> EngineInfo:
    model = config.model_config
    served_name = model.served_model_name
    speculation = config.speculative_config
    info = EngineInfo(
        model=served_name if isinstance(served_name, str) else served_name[0],
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        speculation=_describe_speculation(speculation, config.additional_config),
        reports_decode_steps=(
            speculation is None or config.scheduler_config.scheduler_cls == SCHEDULER
        ),
        step_tokens=config.scheduler_config.max_num_batched_tokens,
        thinking_budget=_keeps_thinking_budgets(config),
        default_sampling=_select_sampling_defaults(model.get_diff_sampling_param()),
        details={
            "vLLM": get_vllm_version() or "unknown",
            "dtype": str(model.dtype).removeprefix("torch."),
            "tensor_parallel_size": str(config.parallel_config.tensor_parallel_size),
        },
    )
    for plugin in list_engine_plugins():
        info = plugin.describe(info, config)
    return info


def _keeps_thinking_budgets(config: VllmConfig) -> bool:
    """Return True if thinking budgets work. vLLM's first model runner applies them to the wrong
    rows of a batch, unless eaglegate's worker runs."""
    is_enabled = bool(config.reasoning_config and config.reasoning_config.enabled)
    is_steered = config.parallel_config.worker_extension_cls == WORKER
    return is_enabled and bool(is_steered or config.use_v2_model_runner)


def _select_sampling_defaults(params: Mapping[str, Any]) -> dict[str, float]:
    """Select the defaults that vLLM read from generation_config.json."""
    return {name: params[name] for name in SAMPLING_DEFAULTS if params.get(name) is not None}


def _describe_speculation(
    config: SpeculativeConfig | None, additional_config: Any = None
) -> SpeculationInfo:
    if config is None:
        return SpeculationInfo("none", 0, summary="no speculation: no draft was given")
    method, draft = _name_method(config), str(config.model)
    depth = read_draft_depth(additional_config, config.num_speculative_tokens)
    is_known = find_method({"method": config.method}).is_known
    lossy = find_lossy({field.name: getattr(config, field.name) for field in fields(config)})
    summary = add_lossy(f"{method}, K = {depth}, draft {draft}", lossy)
    return SpeculationInfo(method, depth, draft, summary, is_known, lossy=lossy)


def _name_method(config: SpeculativeConfig) -> str:
    """Return the method's name. vLLM calls EAGLE 3 and 3.1 both ``eagle3``; the draft's flags tell
    which."""
    draft = getattr(config.draft_model_config, "hf_config", None)
    flags = getattr(draft, "fc_norm", False) or getattr(draft, "norm_output", False)
    return "eagle3.1" if config.method == "eagle3" and flags else str(config.method)


def make_sampling_params(request: EngineRequest) -> SamplingParams:
    """Make parameters that return tokens as deltas. They belong to one request, so vLLM need not
    copy them.

    ``extra_args`` is set directly, because it holds only values that vLLM's messages can carry.
    """
    fields = build_sampling_fields(request)
    extra_args = fields.pop("extra_args")
    if "repetition_detection" in fields:
        repetition = RepetitionDetectionParams(**fields["repetition_detection"])
        fields["repetition_detection"] = repetition
    if "structured_outputs" in fields:
        fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
    params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA, skip_clone=True)
    params.extra_args = extra_args
    return params


def make_prompt(request: EngineRequest) -> Any:
    return tokens_input(list(request.prompt), cache_salt=request.cache_salt or None)


def make_options(request: EngineRequest, adapter: LoRARequest | None) -> dict[str, Any]:
    """Make AsyncLLM's options besides the prompt and the sampling."""
    return {
        "request_id": request.id,
        "lora_request": adapter,
        "trace_headers": request.trace_headers or None,
        "priority": request.priority,
        "reasoning_ended": is_reasoning_ended(request.constraint),
    }


Alternatives = Mapping[int, Any]
"""vLLM's log probabilities of one position: token id -> (logprob, rank)."""


def convert_position_logprobs(
    token_id: int, alternatives: Alternatives, top: int
) -> PositionLogprobs:
    """Convert one position. ``alternatives`` has the chosen token and the ``top`` most likely
    ones, in any order."""
    choice = alternatives[token_id]
    return PositionLogprobs(
        chosen=TokenLogprob(token_id, choice.logprob, choice.rank),
        top=select_top(
            (
                TokenLogprob(token, entry.logprob, entry.rank)
                for token, entry in alternatives.items()
            ),
            top,
        ),
    )


def convert_output_logprobs(
    token_ids: Sequence[int], positions: Sequence[Alternatives] | None, top: int | None
) -> tuple[PositionLogprobs, ...]:
    if positions is None or top is None:
        return ()
    return tuple(
        convert_position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, positions, strict=True)
    )


def convert_prompt_logprobs(
    token_ids: Sequence[int], positions: Sequence[Alternatives | None] | None, top: int | None
) -> tuple[PositionLogprobs | None, ...] | None:
    """Convert the prompt's log probabilities; the first token has None. vLLM returns them once,
    then []."""
    if not positions or top is None:
        return None
    return tuple(
        None if entry is None else convert_position_logprobs(token, entry, top)
        for token, entry in zip(token_ids, positions, strict=True)
    )


INTAKE_ERRORS = (VLLMError, ValueError, OverflowError)
"""Errors that vLLM raises for a request that it refuses. Not all are of its own classes."""


def convert_intake_error(error: Exception, request_id: str) -> EngineError:
    """Convert an error of accepting a request. The request is at fault unless the engine is."""
    engine_error = convert_error(error)
    if type(engine_error) is EngineFailed:
        kind = type(error).__name__
        log.warning("vLLM rejected request %s (%s)", request_id, kind)
        return RequestRejected(f"The engine rejected this request ({kind}).")
    return engine_error


def convert_error(error: Exception) -> EngineError:
    """Convert vLLM's error. Messages of unknown errors are dropped, because they may hold text."""
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


AccountReader = Callable[[EngineCoreOutput, bool], DecodeStep | None]
"""Returns the decode step of an output. The flag marks a request's first output."""


def choose_reader(info: EngineInfo) -> AccountReader:
    if not info.reports_decode_steps:
        return read_nothing
    return read_decode_step if info.speculation.depth else read_plain_step


def read_nothing(_output: EngineCoreOutput, _is_first: bool) -> DecodeStep | None:
    """Return None, because another scheduler reports no decode steps."""
    return None


def read_plain_step(output: EngineCoreOutput, is_first: bool) -> DecodeStep | None:
    """Return the decode step of an output from an engine without speculation."""
    tokens = len(output.new_token_ids)
    return None if is_first or not tokens else intern_step(0, 0, tokens, 0, UndraftedReason.OFF)


def find_undrafted_reason(packed_depth: int) -> UndraftedReason:
    """Return the reason of a decode step without drafts by the depth that was in force."""
    depth, plan_reason, _ = unpack_depth(packed_depth)
    if depth:
        return UndraftedReason.REFUSED
    return UndraftedReason.OFF if plan_reason is None else UndraftedReason.PLANNED


def read_decode_step(output: EngineCoreOutput, is_first: bool) -> DecodeStep | None:
    """Return the decode step of an output; None for the prefill token, and for an end without
    tokens."""
    account = output.spec_decode_metrics
    num_delivered = len(output.new_token_ids)
    if account is None or not num_delivered or (is_first and not account.num_draft_tokens):
        return None
    num_drafted, (num_reached,) = account.num_draft_tokens, account.histogram
    packed_depth = account.num_spec_tokens
    plan_reason, drafter = (
        unpack_depth(packed_depth)[1:] if packed_depth >> DEPTH_BITS else (None, Drafter.DRAFT)
    )
    if not num_drafted:
        reason = find_undrafted_reason(packed_depth)
        return intern_step(0, 0, num_delivered, 0, reason, plan_reason)
    num_accepted = num_reached if num_reached < num_delivered else num_delivered
    num_cut = num_reached - num_accepted
    return intern_step(
        num_drafted, num_accepted, num_delivered, num_cut, None, plan_reason, drafter
    )
