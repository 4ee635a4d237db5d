"""After an image, whose tokens share rotary positions, the draft writes the KV of its later tokens
into the slots of the image.

vLLM takes a rotary position for the slot, so that drafts overwrote the draft's KV of the prompt,
also in blocks that requests share.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = "54498"
UNTIL = ""


def update_positions(
    original: Original,
    drafter: SpecDecodeBaseProposer,
    positions: Tensor,
    metadata: Any,
    batch_size: int,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Find the slots of the next draft tokens by their indices, and continue their rotary
    positions."""
    if not drafter.vllm_config.model_config.uses_mrope:
        return original(drafter, positions, metadata, batch_size, *args, **kwargs)
    limit = drafter.max_model_len - 1
    next_positions = ((positions[0] if drafter.uses_mrope else positions) + 1).clamp(max=limit)
    indices = (metadata.seq_lens[:batch_size] - 1).to(positions.dtype)
    if drafter.uses_mrope:
        indices = indices.expand(len(positions), -1)
    updated_positions = original(drafter, indices, metadata, batch_size, *args, **kwargs)
    updated_positions[...] = next_positions
    return updated_positions


def patch(wrap: Wrap) -> None:
    wrap(SpecDecodeBaseProposer, "_update_positions_dependent_metadata", update_positions)
