"""Patches of vLLM's second model runner, which vLLM uses wherever Triton works: on every GPU.

* Decode steps that want no draft run no draft pass. At depth 0 vLLM still runs the draft model once
  per step to keep its KV cache complete; the scheduler marks the steps in which that may be left
  out. Kinds of drafts other than EAGLE and MTP still run their pass, which is correct and a little
  slower.
* Every row of logits gets the adapter of its request. vLLM names one adapter per request, as if
  each had one row, but with drafts a request has one row per draft and one more. An adapter of the
  output layer then changed the rows of other requests, and on a CPU any adapter killed the engine.

* With ``--lookup`` rows of drafts become lookups (``device_lookups.py``).

This runner does not need the other repairs of ``worker.py``: it applies ``min_p``, ``logit_bias``,
``min_tokens`` and budgets to every row, and keeps adapters off a shared embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from eaglegate.engine.vllm_contract import SKIP

ROWS = "rows_of_logits"
"""Attribute of a LoraState: the number of rows of logits of each request in the step."""
LOOKUPS = "device_lookups"
"""Attribute of a speculator: its DeviceLookups, or None."""


def execute_model(
    original: Callable[..., Any], runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    """Pass the scheduler's marks on to the speculator, because ``sample_tokens`` drafts later
    without them."""
    speculator = runner.speculator
    if speculator is not None:
        setattr(speculator, SKIP, getattr(scheduler_output, SKIP, False))
        if not hasattr(speculator, LOOKUPS):
            from eaglegate.engine.vllm_backend.device_lookups import make_device_lookups

            setattr(speculator, LOOKUPS, make_device_lookups(runner))
        if (lookups := getattr(speculator, LOOKUPS)) is not None:
            lookups.begin_step(scheduler_output)
    return original(runner, scheduler_output, *args, **kwargs)


def sample_tokens(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Sample, and tell the scheduler which of the verified tokens were lookups."""
    lookups = getattr(runner.speculator, LOOKUPS, None)
    if lookups is None:
        return original(runner, *args, **kwargs)
    return lookups.report(runner, partial(original, runner, *args, **kwargs))


def propose(
    original: Callable[..., torch.Tensor],
    speculator: Any,
    input_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Propose drafts. At depth 0 return any tokens, which the runner overwrites."""
    lookups = getattr(speculator, LOOKUPS, None)
    if kwargs.get("dummy_run") or (lookups is not None and lookups.depth is None):
        lookups = None
    if lookups is not None:
        kwargs["num_speculative_tokens"] = lookups.depth
    drafts: torch.Tensor = (
        speculator.draft_tokens[: input_batch.num_reqs]
        if getattr(speculator, SKIP, False)
        else original(speculator, input_batch, *args, **kwargs)
    )
    return drafts if lookups is None else lookups.merge(drafts, input_batch, *args)


def prepare_inputs(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the rows of logits, because ``make_lora_inputs`` prepares the step's adapters
    later, and the proposals that the step verifies."""
    batch = original(runner, *args, **kwargs)
    setattr(runner.lora_state, ROWS, np.diff(batch.cu_num_logits_np))
    if (lookups := getattr(runner.speculator, LOOKUPS, None)) is not None:
        lookups.keep_verified(batch)
    return batch


def make_lora_inputs(
    original: Callable[..., tuple[tuple[int, ...], tuple[int, ...], Any]],
    state: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Return the adapter of each row of logits, the adapter of each token, and the adapters in
    use."""
    requests, tokens, adapters = original(state, *args, **kwargs)
    return tuple(np.repeat(requests, getattr(state, ROWS)).tolist()), tokens, adapters


def patch(wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
    from vllm.v1.worker.gpu.lora_utils import LoraState
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (
        TargetDependentARSpeculator,
    )
    from vllm.v1.worker.gpu.states import RequestState

    from eaglegate.engine.vllm_backend.device_lookups import init_states

    wrap(RequestState, "__init__", init_states)
    wrap(GPUModelRunner, "execute_model", execute_model)
    wrap(GPUModelRunner, "prepare_inputs", prepare_inputs)
    wrap(GPUModelRunner, "sample_tokens", sample_tokens)
    wrap(LoraState, "make_lora_inputs", make_lora_inputs)
    wrap(TargetDependentARSpeculator, "propose", propose)
