"""Drafts made from the demo's, for tests of drafts that are exchanged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from eaglegate.engine.vllm_backend.arguments import DEMO

EAGLE31 = DEMO / "eagle3_1"
EAGLE3 = DEMO / "eagle3"
Change = Callable[[str, torch.Tensor], torch.Tensor]


def change_weights(where: Path, change: Change, source: Path = EAGLE31) -> Path:
    """A copy of a draft with every tensor changed."""
    where.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "config.json", where / "config.json")
    tensors = load_file(source / "model.safetensors")
    changed = {name: change(name, tensor).contiguous() for name, tensor in tensors.items()}
    save_file(changed, where / "model.safetensors")
    return where


def make_noise(where: Path) -> Path:
    """A draft whose matrices are noise: it drafts, and next to nothing is accepted."""
    draws = torch.Generator().manual_seed(7)

    def change(_: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 1:
            return tensor
        return torch.randn(tensor.shape, generator=draws).mul(0.02).to(tensor.dtype)

    return change_weights(where, change)


def perturb(where: Path, scale: float = 0.02, seed: int = 3, source: Path = EAGLE31) -> Path:
    """A draft near the demo's, as one that was trained a little further."""
    draws = torch.Generator().manual_seed(seed)

    def change(_: str, tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=draws)
        return (tensor + scale * tensor.float().std() * noise).to(tensor.dtype)

    return change_weights(where, change, source)
