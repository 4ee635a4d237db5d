"""The model that a draft is trained for: a Llama- or Qwen3-shaped checkpoint, by transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from eaglegate.lab.training.eagle import DraftShape
from eaglegate.lab.training.llama import Rope

FITTING = ("llama", "qwen3")
SHARED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_key_value_heads", "rms_norm_eps",
    "max_position_embeddings", "eos_token_id", "bos_token_id",
)  # fmt: skip
"""Properties of a draft that are its target's."""


class UnfitTarget(ValueError):
    """Target with a shape that the draft head cannot follow."""


@dataclass(frozen=True)
class TargetModel:
    """Frozen target, and the states that a draft reads."""

    model: nn.Module
    config: Any

    @staticmethod
    def load(path: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TargetModel:
        config = AutoConfig.from_pretrained(path)
        check(config)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        return TargetModel(model.to(device).eval().requires_grad_(False), config)

    def embed(self, ids: Tensor) -> Tensor:
        embeddings: Tensor = self.model.get_input_embeddings()(ids)
        return embeddings

    @torch.no_grad()
    def states(self, ids: Tensor, layers: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
        """Return the hidden states after the given layers, and the final normed one."""
        out = self.model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        return [out.hidden_states[i] for i in layers], out.last_hidden_state

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(hidden)
        return logits

    def draft_shape(self, method: str, draft_vocab: int | None = None) -> DraftShape:
        config = self.config
        layers = layers_read(config.num_hidden_layers)
        heads = config.num_attention_heads
        return DraftShape(
            method=method,
            draft_vocab_size=draft_vocab or config.vocab_size,
            num_attention_heads=heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            rope_theta=rope_parameters(config)["rope_theta"],
            layers_read=layers,
            default_layers=layers == engine_default(config.num_hidden_layers),
            **{name: getattr(config, name) for name in SHARED},
        )

    def rope(self, shape: DraftShape, device: str = "cpu") -> Rope:
        return Rope.table(shape.max_position_embeddings, shape.head_dim, shape.rope_theta, device)


def rope_parameters(config: Any) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None) or {}
    return {
        "rope_type": "default",
        "rope_theta": getattr(config, "rope_theta", 10_000.0),
        **parameters,
    }


def check(config: Any) -> None:
    """Raise UnfitTarget if a draft could not be trained or served for this target."""
    if config.model_type not in FITTING:
        raise UnfitTarget(
            f"target has model_type {config.model_type!r}; a draft can be trained for "
            f"{' or '.join(FITTING)}"
        )
    rope = rope_parameters(config)["rope_type"]
    if rope != "default":
        raise UnfitTarget(f"target scales its positions ({rope!r}); only plain RoPE is supported")


def engine_default(layers: int) -> tuple[int, int, int]:
    """Return the layers that vLLM reads when the draft's config names none."""
    return (2, layers // 2, layers - 3)


def layers_read(layers: int) -> tuple[int, ...]:
    """Return the engine's default layers, or distinct ones if the target is too shallow."""
    for layer_ids in (engine_default(layers), (1, layers // 2, layers - 1)):
        if layer_ids[0] < layer_ids[1] < layer_ids[2]:
            return layer_ids
    raise UnfitTarget(f"target has {layers} layers; a draft reads three of them, so at least 4")
