"""The rows of a prompt's log probabilities get the adapters of other requests, and on a CPU the
engine dies."""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

from eaglegate.engine.vllm_backend.patches import Original, Wrap
from eaglegate.engine.vllm_backend.prompt_rows import adapt_rows

THREAD = "16668"
UNTIL = ""


def compute_prompt_logprobs(
    original: Original, worker: Any, logits_fn: MethodType, hidden_states: Tensor, *args: Any
) -> Any:
    compute_logits = adapt_rows(logits_fn.__self__, hidden_states)
    return original(worker, compute_logits, hidden_states, *args)


def patch(wrap: Wrap) -> None:
    wrap(PromptLogprobsWorker, "compute_prompt_logprobs", compute_prompt_logprobs)
