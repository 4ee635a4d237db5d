"""Muon for matrices with AdamW for the rest, and the progress of a long run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM, MATRIX_DECAY = 0.95, 0.02
HEADS = ("embed_tokens", "lm_head")
"""Beginnings of names of matrices that AdamW steps."""


class Optimiser:
    """Optimiser of a module. Muon (momentum, orthogonalised by Newton-Schulz steps; Jordan et al.,
    2024) steps the matrices of one shape together.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._matrices: list[nn.Parameter] = []
        self._others: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            is_matrix = parameter.ndim == 2 and not name.startswith(HEADS)
            (self._matrices if is_matrix else self._others).append(parameter)
        self._buffers = [torch.zeros_like(parameter) for parameter in self._matrices]
        self._adam = torch.optim.AdamW(self._others, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, matrix_lr: float, other_lr: float) -> None:
        """Take one step, and clear the gradients."""
        nn.utils.clip_grad_norm_(self._others, 1.0)
        self._step_matrices(matrix_lr)
        for group in self._adam.param_groups:
            group["lr"] = other_lr
        self._adam.step()
        self._module.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _step_matrices(self, lr: float) -> None:
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, matrix in enumerate(self._matrices):
            groups.setdefault(tuple(matrix.shape), []).append(index)
        for shape, members in groups.items():
            update = orthogonalise(torch.stack([self._average(index) for index in members]))
            scale = lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for index, change in zip(members, update, strict=True):
                self._matrices[index].mul_(1 - lr * MATRIX_DECAY).add_(change, alpha=-scale)

    def _average(self, index: int) -> Tensor:
        gradient = self._matrices[index].grad
        assert gradient is not None
        buffer = self._buffers[index].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(buffer, MOMENTUM)

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._buffers, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._buffers = state["muon"]
        self._adam.load_state_dict(state["adam"])


def orthogonalise(batch: Tensor, iterations: int = 5) -> Tensor:
    """Push the singular values of every matrix in the batch towards one."""
    is_tall = batch.shape[1] > batch.shape[2]
    x = batch.bfloat16().transpose(1, 2) if is_tall else batch.bfloat16()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).bfloat16()
    for _ in range(iterations):
        square = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return (x.transpose(1, 2) if is_tall else x).float()


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write the state atomically."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@dataclass(frozen=True)
class RateStage:
    """Steps with a course of the learning rate: warm-up, constant, linear to `final`."""

    steps: int
    scale: float = 1.0
    warmup: int = 1
    decay_from: float = 0.0
    """Share of the steps after which the rate falls."""
    final: float = 0.0

    def rate(self, step: int) -> float:
        fall = (1 - step / self.steps) / (1 - self.decay_from)
        warm_up = min(1.0, (step + 1) / self.warmup)
        return self.scale * warm_up * max(self.final, min(1.0, fall))


@dataclass
class Running:
    """Exponential mean."""

    decay: float = 0.95
    value: float | None = None

    def add(self, sample: float) -> None:
        value = sample if self.value is None else self.value
        self.value = self.decay * value + (1 - self.decay) * sample

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.4f}"


@dataclass
class Clock:
    """Speed since this process started, and the remaining time at that speed."""

    steps: int
    first_step: int = 0
    start: float = field(default_factory=time.monotonic)

    def describe(self, step: int) -> str:
        spent_s = time.monotonic() - self.start
        remaining_s = spent_s / max(1, step - self.first_step) * (self.steps - step)
        return (
            f"step {step}/{self.steps}, {spent_s / 60:.1f} min, "
            f"about {remaining_s / 60:.0f} min left"
        )
