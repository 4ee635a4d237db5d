"""Optional training objective: attend at every depth as with the target's states.

Attention drifts with depth, from the prompt to the tokens just drafted (``lab.training.drift``). A
row that has speculated k tokens is at the same position as the row k further on at depth 0, which
reads the target's states of those tokens. The attention of that row is the goal for depth k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eaglegate.lab.training.eagle import Depth

LEAST = 1e-6
"""Lower bound of attention, because bfloat16 rounds small values to zero."""


def measure_misalignment(depth: Depth, root_attention: Tensor, rows: Tensor) -> Tensor:
    """Return the KL divergence from depth 0 to this depth, mean over heads: [batch, rows - depth],
    nats.

    root_attention: attention at depth 0, [batch, heads, rows, context]. rows: positions,
    [batch, rows], each one after the one before it.
    """
    k, context = depth.depth, root_attention.shape[-1]
    count = rows.shape[1] - k
    target = root_attention[:, :, k:].detach().float()
    attention = place_own_tokens(depth.attention[:, :, :count].float(), rows[:, :count], context)
    ratio = target.clamp(min=LEAST).log() - attention.clamp(min=LEAST).log()
    return (target * ratio).sum(-1).mean(1)


def place_own_tokens(attention: Tensor, rows: Tensor, context: int) -> Tensor:
    """Map [..., context + own] to [..., context]: own token i of row r is position r + 1 + i."""
    speculated = attention[..., context:]
    index = rows[..., None] + 1 + torch.arange(speculated.shape[-1], device=rows.device)
    index = index.clamp(max=context - 1)[:, None].expand(speculated.shape)
    return attention[..., :context].scatter_add(-1, index, speculated)
