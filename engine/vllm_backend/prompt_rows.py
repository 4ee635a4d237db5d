"""The adapter of each row of logits computed for the positions of a prompt.

Log probabilities of a prompt, and audits, need the logits of many positions of one request. vLLM's
output layer takes the adapter of a row from the list of rows that are sampled in the step. The
logits of a prompt then got the adapters of other requests, and on a CPU the engine died. Here each
row gets the adapter of the token whose hidden state it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
