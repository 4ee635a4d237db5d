"""vLLM names one adapter per request, but with drafts a request has a row of logits per draft and
one more.

An adapter of the output layer changed the rows of other requests, and on a CPU any adapter killed
the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.worker.gpu.lora_utils import LoraState
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import Original, Wrap

ROWS = "rows_of_logits"
"""Attribute of a LoraState: the number of rows of logits of each request in the step."""
THREAD = UNTIL = ""


def prepare_inputs(original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Record the rows of logits, because ``make_lora_inputs`` prepares the step's adapters
    later."""
    batch = original(runner, *args, **kwargs)
    setattr(runner.lora_state, ROWS, np.diff(batch.cu_num_logits_np))
    return batch


def make_lora_inputs(
    original: Original, state: Any, *args: Any, **kwargs: Any
) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Return the adapter of each row of logits, the adapter of each token, and the adapters in
    use."""
    requests, tokens, adapters = original(state, *args, **kwargs)
    return tuple(np.repeat(requests, getattr(state, ROWS)).tolist()), tokens, adapters


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "prepare_inputs", prepare_inputs)
    wrap(LoraState, "make_lora_inputs", make_lora_inputs)
