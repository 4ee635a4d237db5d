"""The rows of a prompt's log probabilities get the adapters of other requests, and on a CPU the
engine dies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import Original, Wrap
from eaglegate.engine.vllm_backend.prompt_rows import adapt_rows

THREAD = "16668"
UNTIL = ""


def get_prompt_logprobs(original: Original, runner: Any, hidden_states: Tensor, *args: Any) -> Any:
    if not runner.num_prompt_logprobs:
        return original(runner, hidden_states, *args)
    model, compute_logits = runner.model, adapt_rows(runner.model, hidden_states)
    runner.model = SimpleNamespace(compute_logits=compute_logits)  # vLLM uses no more of it here
    try:
        return original(runner, hidden_states, *args)
    finally:
        runner.model = model


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "_get_prompt_logprobs_dict", get_prompt_logprobs)
