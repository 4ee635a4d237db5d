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


def measure_misalignment(depth: Depth, first: Tensor, rows: Tensor) -> Tensor:
    """Return the KL divergence from depth 0 to this depth, mean over heads: [batch, rows - depth],
    nats.

    first: attention at depth 0, [batch, heads, rows, context]. rows: positions, [batch, rows], each
    one after the one before it.
    """
    k, context = depth.depth, first.shape[-1]
    count = rows.shape[1] - k
    wanted = first[:, :, k:].detach().float()
    found = place_own_tokens(depth.attention[:, :, :count].float(), rows[:, :count], context)
    ratio = wanted.clamp(min=LEAST).log() - found.clamp(min=LEAST).log()
    return (wanted * ratio).sum(-1).mean(1)


def place_own_tokens(attention: Tensor, rows: Tensor, context: int) -> Tensor:
    """Map [..., context + own] to [..., context]: own token i of row r is position r + 1 + i."""
    own = attention[..., context:]
    where = rows[..., None] + 1 + torch.arange(own.shape[-1], device=rows.device)
    where = where.clamp(max=context - 1)[:, None].expand(own.shape)
    return attention[..., :context].scatter_add(-1, where, own)
