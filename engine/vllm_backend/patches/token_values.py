"""The kernel that spreads temperature, top-p and top-k over draft tokens writes to a copy, and vLLM
samples with uninitialised memory.

Acceptance fell to a twentieth, and text came from another distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm.v1.sample import rejection_sampler

from eaglegate.engine.vllm_backend.patches import Wrap

THREAD = "55005"
UNTIL = ""


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Expand ``[a, b]`` with two and one tokens to ``[a, a, b]``; one value may be replaced."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, replace_to, x) if replace_from != replace_to else x
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def patch(_: Wrap) -> None:
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
