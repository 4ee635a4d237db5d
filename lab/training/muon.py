"""Muon: momentum, orthogonalised by Newton-Schulz steps, for matrices (Jordan et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Muon:
    """Optimiser that steps matrices of one shape together; `buffers` (one per parameter) is its
    state.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], momentum: float = 0.95) -> None:
        self.momentum = momentum
        self.parameters = list(parameters)
        self.buffers = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, lr: float, weight_decay: float) -> None:
        groups: dict[tuple[int, ...], list[int]] = {}
        for i in range(len(self.parameters)):
            groups.setdefault(tuple(self.parameters[i].shape), []).append(i)
        for shape, members in groups.items():
            update = orthogonalise(torch.stack([self.averaged(i) for i in members]))
            scale = lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for i, change in zip(members, update, strict=True):
                self.parameters[i].mul_(1 - lr * weight_decay).add_(change, alpha=-scale)

    def averaged(self, i: int) -> Tensor:
        gradient = self.parameters[i].grad
        assert gradient is not None
        buffer = self.buffers[i].lerp_(gradient, 1 - self.momentum)
        return gradient.lerp(buffer, self.momentum)


def orthogonalise(batch: Tensor, iterations: int = 5) -> Tensor:
    """Push the singular values of every matrix in the batch towards one."""
    is_tall = batch.shape[1] > batch.shape[2]
    x = batch.bfloat16().transpose(1, 2) if is_tall else batch.bfloat16()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(iterations):
        square = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return (x.transpose(1, 2) if is_tall else x).float()
