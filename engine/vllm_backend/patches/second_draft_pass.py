"""At depth 0 vLLM runs the draft model once per step, to keep its KV cache complete.

The scheduler marks the steps in which that may be left out. Kinds of drafts other than EAGLE and
MTP still run their pass, which is correct and a little slower.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (
    TargetDependentARSpeculator,
)

from eaglegate.engine.vllm_backend.patches import Original, Wrap
from eaglegate.engine.vllm_contract import SKIP

THREAD = "53426"
UNTIL = ""


def execute_model(
    original: Original, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    """Pass the scheduler's marks on to the speculator, because ``sample_tokens`` drafts later
    without them."""
    speculator = runner.speculator
    if speculator is not None:
        setattr(speculator, SKIP, getattr(scheduler_output, SKIP, False))
    return original(runner, scheduler_output, *args, **kwargs)


def propose(
    original: Original, speculator: Any, input_batch: Any, *args: Any, **kwargs: Any
) -> Tensor:
    """Propose drafts. At depth 0 return any tokens, which the runner overwrites."""
    if getattr(speculator, SKIP, False):
        drafts: Tensor = speculator.draft_tokens[: input_batch.num_reqs]
    else:
        drafts = original(speculator, input_batch, *args, **kwargs)
    return drafts


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "execute_model", execute_model)
    wrap(TargetDependentARSpeculator, "propose", propose)
