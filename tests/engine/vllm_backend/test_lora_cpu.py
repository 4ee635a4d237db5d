"""Tokens without an adapter, in vLLM's kernels for CPUs."""

from __future__ import annotations

import torch
from vllm.lora.ops.torch_ops import lora_ops

from eaglegate.engine.vllm_backend.patches.base_model_rows import mask_negative_indices


def test_tokens_without_an_adapter_are_left_alone() -> None:
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(5, 8, generator=draw)
    weights = torch.randn(2, 1, 4, 8, generator=draw)
    indices = torch.tensor([0, -1, 1, -1, 0])
    got = torch.zeros(5, 4)
    mask_negative_indices(lora_ops.bgmv_shrink)(inputs, weights, got, indices, 2.0)
    for row, index in enumerate(indices.tolist()):
        want = 2.0 * weights[index, 0] @ inputs[row] if index >= 0 else torch.zeros(4)
        torch.testing.assert_close(got[row], want)


def test_adding_leaves_what_is_there() -> None:
    draw = torch.Generator().manual_seed(2)
    weights = torch.randn(2, 1, 6, 4, generator=draw)
    output = torch.randn(3, 6, generator=draw)
    before = output.clone()
    inputs = torch.randn(3, 4, generator=draw)
    mask_negative_indices(lora_ops.bgmv_expand)(inputs, weights, output, torch.tensor([-1, 1, -1]))
    torch.testing.assert_close(output[[0, 2]], before[[0, 2]])
    torch.testing.assert_close(output[1], before[1] + weights[1, 0] @ inputs[1])
