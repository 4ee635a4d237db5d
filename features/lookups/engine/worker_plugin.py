"""Lookups in the worker of vLLM's second model runner: where ``device_lookups.py`` is called.

The first runner needs none of this, because its scheduler receives the drafts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.triton_utils import HAS_TRITON

from eaglegate.engine.vllm_backend.patches import Original, Wrap
from eaglegate.engine.vllm_parts import Promise
from eaglegate.features.lookups.engine.contract import read_lookup

PROMISE = Promise.TEXT
LOOKUPS = "device_lookups"
"""Attribute of a speculator: its DeviceLookups, or None."""


def execute_model(
    original: Original, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    speculator = runner.speculator
    if speculator is not None:
        if not hasattr(speculator, LOOKUPS):
            setattr(speculator, LOOKUPS, _make_lookups(runner))
        if (lookups := getattr(speculator, LOOKUPS)) is not None:
            lookups.begin_step(scheduler_output)
    return original(runner, scheduler_output, *args, **kwargs)


def _make_lookups(runner: Any) -> Any:
    """Make the lookups of a worker; None without ``--lookup``."""
    from eaglegate.features.lookups.engine.device_lookups import DeviceLookups

    settings = read_lookup(runner.vllm_config.additional_config)
    return None if settings is None else DeviceLookups(runner, settings[1])


def sample_tokens(original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Sample, and tell the scheduler which of the verified tokens were lookups."""
    lookups = getattr(runner.speculator, LOOKUPS, None)
    if lookups is None:
        return original(runner, *args, **kwargs)
    return lookups.report(runner, partial(original, runner, *args, **kwargs))


def propose(
    original: Original, speculator: Any, input_batch: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Propose drafts of the draft's own depth, and put lookups in their place."""
    lookups = getattr(speculator, LOOKUPS, None)
    if lookups is None or lookups.depth is None or kwargs.get("dummy_run"):
        drafts: torch.Tensor = original(speculator, input_batch, *args, **kwargs)
        return drafts
    kwargs["num_speculative_tokens"] = lookups.depth
    drafts = original(speculator, input_batch, *args, **kwargs)
    merged: torch.Tensor = lookups.merge(drafts, input_batch, *args)
    return merged


def prepare_inputs(original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the proposals that the step verifies."""
    batch = original(runner, *args, **kwargs)
    if (lookups := getattr(runner.speculator, LOOKUPS, None)) is not None:
        lookups.keep_verified(batch)
    return batch


def init_states(original: Any, states: Any, *args: Any, **kwargs: Any) -> None:
    """Keep the requests' tokens in the device's memory, where the kernels scan them, as vLLM does
    for its own n-grams."""
    if read_lookup(get_current_vllm_config().additional_config) is not None:
        kwargs["use_dense_all_token_ids"] = True
    original(states, *args, **kwargs)


def patch(wrap: Wrap, worker: type) -> None:  # noqa: ARG001
    if not HAS_TRITON:  # vLLM's first model runner
        return
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (
        TargetDependentARSpeculator,
    )
    from vllm.v1.worker.gpu.states import RequestState

    wrap(RequestState, "__init__", init_states)
    wrap(GPUModelRunner, "execute_model", execute_model)
    wrap(GPUModelRunner, "prepare_inputs", prepare_inputs)
    wrap(GPUModelRunner, "sample_tokens", sample_tokens)
    wrap(TargetDependentARSpeculator, "propose", propose)
