"""At depth 0 vLLM runs the draft model once per step, to keep its KV cache complete.

The scheduler marks the steps in which that may be left out. With synchronous scheduling such a step
also prepares nothing for the draft.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import Original, Wrap
from eaglegate.engine.vllm_contract import SKIP

THREAD = "49548"
UNTIL = ""


def propose_draft_token_ids(
    original: Original, runner: GPUModelRunner, scheduler_output: Any, *args: Any, **kwargs: Any
) -> Any:
    skip = getattr(scheduler_output, SKIP, False)
    if skip and not runner.use_async_scheduling:
        return [[] for _ in range(runner.input_batch.num_reqs)]
    setattr(runner.drafter, SKIP, skip)
    return original(runner, scheduler_output, *args, **kwargs)


def propose(original: Original, drafter: SpecDecodeBaseProposer, *args: Any, **kwargs: Any) -> Any:
    if not getattr(drafter, SKIP, False):
        return original(drafter, *args, **kwargs)
    requests = kwargs["common_attn_metadata"].batch_size()
    return torch.empty(requests, 0, device=drafter.device, dtype=torch.int64)


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "propose_draft_token_ids", propose_draft_token_ids)
    wrap(SpecDecodeBaseProposer, "propose", propose)
