"""Requests without an adapter get the text of the last adapter.

vLLM gives their tokens the index -1, which its CPU kernels take for the last one.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import Tensor
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

from eaglegate.engine.vllm_backend.patches import Original, Wrap

KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")
THREAD = "48421"
UNTIL = "0.33"


def mask_negative_indices(kernel: Original) -> Original:
    """Return ``kernel`` without effect on tokens with a negative index."""

    @wraps(kernel)
    def masked(
        inputs: Tensor, weights: Tensor, output: Tensor, indices: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        with_adapter = indices >= 0
        if not bool(with_adapter.all()):
            inputs = inputs * with_adapter.unsqueeze(1).to(inputs.dtype)
            indices = indices.clamp(min=0)
        return kernel(inputs, weights, output, indices, *args, **kwargs)

    return masked


def patch(_: Wrap) -> None:
    """Replace the kernels in every vLLM module that has their names."""
    for name in KERNELS:
        kernel = mask_negative_indices(getattr(lora_ops, name))
        setattr(lora_ops, name, kernel)
        setattr(punica_cpu, name, kernel)
