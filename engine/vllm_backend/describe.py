"""What a ``VllmConfig`` says about an engine, in the words of ``engine.types``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.config.speculative import SpeculativeConfig

from engine.types import EngineInfo, SpeculationInfo
from engine.vllm_backend.names import SCHEDULER

SAMPLING_DEFAULTS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens",
)  # fmt: skip


def describe_engine(config: VllmConfig) -> EngineInfo:
    model = config.model_config
    served = model.served_model_name
    speculation = config.speculative_config
    return EngineInfo(
        model=served if isinstance(served, str) else served[0],
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        speculation=_describe_speculation(speculation),
        reports_decode_steps=(
            speculation is None or config.scheduler_config.scheduler_cls == SCHEDULER
        ),
        thinking_budget=bool(config.reasoning_config and config.reasoning_config.enabled),
        default_sampling=_select_sampling_defaults(model.get_diff_sampling_param()),
        details={
            "dtype": str(model.dtype).removeprefix("torch."),
            "tensor_parallel_size": str(config.parallel_config.tensor_parallel_size),
        },
    )


def _select_sampling_defaults(params: Mapping[str, Any]) -> dict[str, float]:
    """vLLM's reading of generation_config.json; a limit of tokens goes by our name."""
    return {name: params[name] for name in SAMPLING_DEFAULTS if params.get(name) is not None}


def _describe_speculation(config: SpeculativeConfig | None) -> SpeculationInfo:
    if config is None:
        return SpeculationInfo("none", 0, summary="no speculation: no draft was given")
    method, depth, draft = _name_method(config), config.num_speculative_tokens, str(config.model)
    return SpeculationInfo(method, depth, draft, summary=f"{method}, K = {depth}, draft {draft}")


def _name_method(config: SpeculativeConfig) -> str:
    """vLLM calls EAGLE 3 and 3.1 both ``eagle3``; the draft's flags tell them apart."""
    draft = getattr(config.draft_model_config, "hf_config", None)
    flags = getattr(draft, "fc_norm", False) or getattr(draft, "norm_output", False)
    return "eagle3.1" if config.method == "eagle3" and flags else str(config.method)
