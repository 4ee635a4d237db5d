"""A small LoRA adapter for the demo's target, made of random numbers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from eaglegate.engine.vllm_backend.arguments import DEMO

RANK = 4
SCALE = 0.6
"""Weight of the adapter: enough to change the demo's answers."""


def make_adapter(path: Path, seed: int, head: bool = False) -> Path:
    """``head``: of the output layer, too, which runs on rows that are sampled, not on tokens."""
    config = json.loads((DEMO / "target" / "config.json").read_text(encoding="utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    sizes = {"self_attn.q_proj": (hidden, heads), "mlp.down_proj": (inner, hidden)}
    draw = torch.Generator().manual_seed(seed)
    places = {
        f"model.layers.{layer}.{name}": size
        for layer in range(config["num_hidden_layers"])
        for name, size in sizes.items()
    }
    if head:
        places["lm_head"] = (hidden, config["vocab_size"])
    tensors = {}
    for place, (into, out) in places.items():
        a = torch.randn(RANK, into, generator=draw) / into**0.5
        tensors[f"base_model.model.{place}.lora_A.weight"] = a
        b = torch.randn(out, RANK, generator=draw) * SCALE
        tensors[f"base_model.model.{place}.lora_B.weight"] = b
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "down_proj", *(["lm_head"] if head else [])],
        "base_model_name_or_path": "demo",
    }
    (path / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")
    return path
