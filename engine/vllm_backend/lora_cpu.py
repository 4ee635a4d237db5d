"""LoRA on a CPU: tokens of requests without an adapter are left as they are.

vLLM marks them with the index -1, which its kernels for CPUs take for the last adapter: in a batch
with others, a request of the model itself was given that adapter's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def mask_negative_indices(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel`` with nothing to add where the index is negative."""

    def masked(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        indices: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with_adapter = indices >= 0
        if not bool(with_adapter.all()):
            inputs = inputs * with_adapter.unsqueeze(1).to(inputs.dtype)
            indices = indices.clamp(min=0)
        return kernel(inputs, weights, output, indices, *args, **kwargs)

    return masked


def patch_kernels() -> None:
    """Replace the kernels wherever vLLM has their names."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for name in KERNELS:
        kernel = mask_negative_indices(getattr(lora_ops, name))
        setattr(lora_ops, name, kernel)
        setattr(punica_cpu, name, kernel)
