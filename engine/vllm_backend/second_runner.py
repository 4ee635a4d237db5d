"""Patches of vLLM's second model runner, which vLLM uses wherever Triton works: on every GPU.

* Decode steps that want no draft run no draft pass. At depth 0 vLLM still runs the draft model once
  per step to keep its KV cache complete; the scheduler marks the steps in which that may be left
  out. Kinds of drafts other than EAGLE and MTP still run their pass, which is correct and a little
  slower.
* Every row of logits gets the adapter of its request. vLLM names one adapter per request, as if
  each had one row, but with drafts a request has one row per draft and one more. An adapter of the
  output layer then changed the rows of other requests, and on a CPU any adapter killed the engine.

This runner does not need the other repairs of ``worker.py``: it applies ``min_p``, ``logit_bias``,
``min_tokens`` and budgets to every row, and keeps adapters off a shared embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from eaglegate.engine.vllm_contract import SKIP

ROWS = "rows_of_logits"
"""Attribute of a LoraState: the number of rows of logits of each request in the step."""


def execute_model(
    original: Callable[..., Any], runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    """Pass the scheduler's marks on to the speculator, because ``sample_tokens`` drafts later
    without them."""
    speculator = runner.speculator
    if speculator is not None:
        setattr(speculator, SKIP, getattr(scheduler_output, SKIP, False))
    return original(runner, scheduler_output, *args, **kwargs)


def propose(
    original: Callable[..., torch.Tensor],
    speculator: Any,
    input_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Propose drafts. At depth 0 return any tokens, which the runner overwrites."""
    if not getattr(speculator, SKIP, False):
        return original(speculator, input_batch, *args, **kwargs)
    drafts: torch.Tensor = speculator.draft_tokens[: input_batch.num_reqs]
    return drafts


def prepare_inputs(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the rows of logits, because ``make_lora_inputs`` prepares the step's adapters
    later."""
    batch = original(runner, *args, **kwargs)
    setattr(runner.lora_state, ROWS, np.diff(batch.cu_num_logits_np))
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

    wrap(GPUModelRunner, "execute_model", execute_model)
    wrap(GPUModelRunner, "prepare_inputs", prepare_inputs)
    wrap(LoraState, "make_lora_inputs", make_lora_inputs)
    wrap(TargetDependentARSpeculator, "propose", propose)
