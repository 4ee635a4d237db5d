"""A worker extension that fills the memory that vLLM's rejection sampler leaves uninitialised.

On a CPU vLLM spreads temperatures over draft tokens into a copy, and samples with the memory that
was meant to hold them (docs/speculation.md). By luck that memory holds the right temperatures.
"""

from __future__ import annotations

import torch
from vllm.v1.sample import rejection_sampler

HOT = 7
"""A temperature at which hardly any draft token is accepted, and a top-k that changes little."""


def fill(x: torch.Tensor, _: torch.Tensor, num_tokens: int, **__: int) -> torch.Tensor:
    """Replace ``rejection_sampler.expand_batch_to_tokens``."""
    return x.new_full((num_tokens,), HOT)


class UninitialisedWorker:
    """Not the gateway's own ``DepthWorker``, which spreads temperatures rightly."""


rejection_sampler.expand_batch_to_tokens = fill
