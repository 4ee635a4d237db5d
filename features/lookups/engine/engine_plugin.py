"""Lookups of an engine, in the gateway's process: what they refuse, and their description."""

from __future__ import annotations

from dataclasses import replace

from vllm.config import CUDAGraphMode, VllmConfig

from eaglegate.engine.speculation.drafts.methods import Runner, StepDepth
from eaglegate.engine.types import EngineInfo
from eaglegate.engine.vllm_backend.engine_plugin import EnginePlugin
from eaglegate.engine.vllm_backend.runners import make_runner
from eaglegate.features.lookups.engine.contract import read_lookup


class LookupPlugin(EnginePlugin):
    """Lookups, where ``--lookup`` has switched them on."""

    def refuse(self, config: VllmConfig) -> None:
        refuse_lookups(config)

    def describe(self, info: EngineInfo, config: VllmConfig) -> EngineInfo:
        lookup = read_lookup(config.additional_config)
        if lookup is None:
            return info
        takes_quotes = not config.use_v2_model_runner
        speculation = replace(info.speculation, lookup=lookup[0], takes_quotes=takes_quotes)
        return replace(info, speculation=speculation)


def _has_graphs(config: VllmConfig) -> bool:
    mode = config.compilation_config.cudagraph_mode
    return mode is not None and mode.decode_mode() == CUDAGraphMode.FULL


def refuse_lookups(config: VllmConfig) -> None:
    """Raise ValueError if lookups would be wrong with this configuration, with what to do."""
    settings = read_lookup(config.additional_config)
    if settings is None:
        return
    width, depth = settings
    draft, parallel = config.speculative_config, config.parallel_config
    model = config.model_config
    runner = make_runner(config)
    method, behaviour, is_second = runner.method, runner.behaviour, runner.name is Runner.SECOND
    problem = None
    if config.scheduler_config.async_scheduling and not is_second:
        problem = (
            "works with synchronous scheduling on vLLM's first model runner; add "
            "--no-async-scheduling"
        )
    elif method.may_find_none:
        problem = (
            f"works beside a draft model, and {method.name} looks drafts up itself; leave it out"
        )
    elif is_second and draft.use_multi_module_mtp():
        problem = (
            "works beside an MTP draft of several layers on vLLM's first model runner only; set "
            "VLLM_USE_V2_MODEL_RUNNER=0"
        )
    elif behaviour.depth is not StepDepth.ANY:
        names = "eagle, eagle3, mtp" if is_second else "eagle, eagle3, mtp, draft_model"
        problem = (
            f"works beside a draft whose depth varies by step ({names}), "
            f"and {method.name} {behaviour.summary}; leave it out"
        )
    elif is_second and width > depth and (width + 1) % (depth + 1) and _has_graphs(config):
        fitting_width = max(2, (width + 1) // (depth + 1)) * (depth + 1) - 1
        problem = (
            f"of {width} leaves drafts of {depth} tokens without FULL CUDA graphs: N + 1 must be a "
            f"multiple of {depth + 1}; use --lookup {fitting_width}"
        )
    elif draft.draft_sample_method == "probabilistic":
        problem = (
            "would be verified by the draft's probabilities, which gives another distribution; "
            "set draft_sample_method to greedy"
        )
    elif parallel.data_parallel_size > 1:
        problem = "works without data parallelism, whose ranks draft alike; run one gateway each"
    elif parallel.pipeline_parallel_size > 1:
        problem = "works without pipeline parallelism; use --tensor-parallel-size"
    elif (model.is_hybrid or model.is_attention_free) and width > depth:
        problem = (
            f"of {width} is longer than num_speculative_tokens {depth}, and a recurrent target "
            f"keeps one state per draft token; use --lookup {depth}"
        )
    if problem is not None:
        raise ValueError(f"--lookup {problem}")


PLUGIN = LookupPlugin()
