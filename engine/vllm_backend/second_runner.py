"""Patch of vLLM's second model runner, which it takes wherever Triton works: on every GPU.

No draft pass in decode steps that want no draft. vLLM at depth 0 still runs the draft model once
per step to keep its KV cache whole; the scheduler marks the steps where that may be left out. The
other fields and repairs of ``worker.py`` are not needed here: this runner applies ``min_p``,
``logit_bias``, ``min_tokens`` and budgets to every row, and keeps adapters off a shared embedding.

Drafts of another kind than EAGLE and MTP run their pass all the same: correct, and a little slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from eaglegate.engine.vllm_contract import SKIP


def execute_model(
    original: Callable[..., Any], runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    """The step's drafts are made later, by ``sample_tokens``, which is not given the mark."""
    if runner.speculator is not None:
        setattr(runner.speculator, SKIP, getattr(scheduler_output, SKIP, False))
    return original(runner, scheduler_output, *args, **kwargs)


def propose(
    original: Callable[..., torch.Tensor],
    speculator: Any,
    input_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Propose drafts, or any tokens at depth 0, where the runner overwrites all that is returned
    here.
    """
    if not getattr(speculator, SKIP, False):
        return original(speculator, input_batch, *args, **kwargs)
    drafts: torch.Tensor = speculator.draft_tokens[: input_batch.num_reqs]
    return drafts


def patch(wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (
        TargetDependentARSpeculator,
    )

    wrap(GPUModelRunner, "execute_model", execute_model)
    wrap(TargetDependentARSpeculator, "propose", propose)
