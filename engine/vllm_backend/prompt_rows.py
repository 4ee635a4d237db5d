"""The adapter of each row of logits computed for the positions of a prompt.

vLLM's output layer takes the adapter of a row from the list of rows that are sampled in the step,
which does not fit the many rows of one prompt. Here each row gets the adapter of the token whose
hidden state it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

Logits = Callable[[torch.Tensor], torch.Tensor | None]


def adapt_rows(model: Any, hidden_states: torch.Tensor) -> Logits:
    """Return ``model.compute_logits`` for slices of ``hidden_states``, which has a row per
    token."""
    compute_logits: Logits = model.compute_logits
    manager = getattr(model, "lora_manager", None)
    if manager is None:
        return compute_logits

    def compute_adapted(rows: torch.Tensor) -> torch.Tensor | None:
        step = manager._last_mapping
        begin = (rows.storage_offset() - hidden_states.storage_offset()) // hidden_states.stride(0)
        adapters = step.index_mapping[begin : begin + len(rows)]
        manager.set_adapter_mapping(replace(step, index_mapping=adapters, prompt_mapping=adapters))
        try:
            return compute_logits(rows)
        finally:
            manager.set_adapter_mapping(step)

    return compute_adapted
