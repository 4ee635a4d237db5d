"""The adapter of each row of logits computed for the positions of a prompt.

Log probabilities of a prompt need the logits of many positions of one request. vLLM's output layer
takes the adapter of a row from the list of rows that are sampled in the step. The logits of a
prompt then got the adapters of other requests, and on a CPU the engine died. Here each row gets the
adapter of the token whose hidden state it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import torch

Logits = Callable[[torch.Tensor], torch.Tensor | None]


def adapt_rows(model: Any, hidden_states: torch.Tensor) -> Logits:
    """Return ``model.compute_logits`` for slices of ``hidden_states``, which has a row per
    token."""
    return partial(_compute_logits, model, hidden_states)


def _compute_logits(
    model: Any, hidden_states: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor | None:
    compute_logits: Logits = model.compute_logits
    manager = getattr(model, "lora_manager", None)
    if manager is None:
        return compute_logits(rows)
    step = manager._last_mapping
    begin = (rows.storage_offset() - hidden_states.storage_offset()) // hidden_states.stride(0)
    adapters = step.index_mapping[begin : begin + len(rows)]
    manager.set_adapter_mapping(replace(step, index_mapping=adapters, prompt_mapping=adapters))
    try:
        return compute_logits(rows)
    finally:
        manager.set_adapter_mapping(step)


class PromptModel:
    """The part of a model that vLLM uses for log probabilities of prompts."""

    def __init__(self, compute_logits: Logits) -> None:
        self.compute_logits = compute_logits


def get_prompt_logprobs(
    original: Callable[..., Any], runner: Any, hidden_states: torch.Tensor, *args: Any
) -> Any:
    """Replace the first runner's ``GPUModelRunner._get_prompt_logprobs_dict``."""
    if not runner.num_prompt_logprobs:
        return original(runner, hidden_states, *args)
    runner.model, model = PromptModel(adapt_rows(runner.model, hidden_states)), runner.model
    try:
        return original(runner, hidden_states, *args)
    finally:
        runner.model = model


def compute_prompt_logprobs(
    original: Callable[..., Any],
    worker: Any,
    logits_fn: MethodType,
    hidden_states: torch.Tensor,
    *args: Any,
) -> Any:
    """Replace the second runner's ``PromptLogprobsWorker.compute_prompt_logprobs``."""
    compute_logits = adapt_rows(logits_fn.__self__, hidden_states)
    return original(worker, compute_logits, hidden_states, *args)
