"""Checkpoints on disk, in the layouts that vLLM loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eaglegate.lab.training.eagle import METHODS, Draft, DraftShape
from eaglegate.lab.training.llama import Llama, LlamaShape

GENERATION = {"eos_token_id": 3, "pad_token_id": 0, "temperature": 0.0}
"""Defaults of generation: greedy, because a model this small has no good second choices."""
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def target_tensors(model: Llama) -> dict[str, Tensor]:
    """Return the model's tensors under the names of the layout."""
    return {
        name if name.startswith("lm_head") else f"model.{name}": tensor
        for name, tensor in model.state_dict().items()
    }


def save_target(
    model: Llama,
    tokenizer: Path,
    out: Path,
    identity_layers: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write weights, configuration and tokenizer, cost-scaled if there are identity layers."""
    out.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    tensors = target_tensors(model)
    config = shape.config(dtype_name(dtype))
    if identity_layers:
        tensors = cost_scaled(tensors, shape, identity_layers)
        config["num_hidden_layers"] = shape.num_hidden_layers + identity_layers
        config["cost_scaled"] = f"{identity_layers} identity layers: same function, higher cost"
    save_file(
        {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()},
        out / WEIGHTS,
        metadata={"format": "pt"},
    )
    write_json(out / CONFIG, config)
    write_json(out / "generation_config.json", GENERATION)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / file, out / file)


def cost_scaled(tensors: dict[str, Tensor], shape: LlamaShape, identity: int) -> dict[str, Tensor]:
    """Spread the layers among identity layers, whose zero output projections add nothing."""
    layers = shape.num_hidden_layers
    if identity % layers:
        raise ValueError(f"{identity} identity layers cannot be spread over {layers} layers evenly")
    copies = 1 + identity // layers
    spread = {name: tensor for name, tensor in tensors.items() if ".layers." not in name}
    for name, tensor in tensors.items():
        if ".layers." not in name:
            continue
        prefix, number, suffix = split_layer(name)
        is_output = suffix.endswith(("o_proj.weight", "down_proj.weight"))
        for copy in range(copies):
            is_zero = is_output and copy > 0
            key = f"{prefix}{number * copies + copy}.{suffix}"
            spread[key] = torch.zeros_like(tensor) if is_zero else tensor.clone()
    return spread


def split_layer(name: str) -> tuple[str, int, str]:
    """Split `model.layers.3.mlp.up_proj.weight` into (`model.layers.`, 3, `mlp.up_proj.weight`)."""
    prefix, _, tail = name.partition("layers.")
    number, _, suffix = tail.partition(".")
    return f"{prefix}layers.", int(number), suffix


def load_llama(path: Path) -> Llama:
    """Load a target saved by `save_target` as the training model."""
    config = json.loads((path / CONFIG).read_text())
    shape = LlamaShape(**{name: config[name] for name in LlamaShape.__dataclass_fields__})
    model = Llama(shape)
    tensors = load_file(path / WEIGHTS)
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return model


def save_draft(
    draft: Draft, out: Path, target_ids: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write a draft. `target_ids` are those of a reduced draft vocabulary, in rising order."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.to("cpu", dtype).contiguous() for name, t in draft.state_dict().items()}
    if target_ids is not None:
        tensors["d2t"] = target_ids.cpu().long() - torch.arange(len(target_ids))
        is_kept = torch.zeros(draft.shape.vocab_size, dtype=torch.bool)
        is_kept[target_ids.cpu()] = True
        tensors["t2d"] = is_kept
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    write_json(out / CONFIG, draft.shape.config(dtype_name(dtype)))


def load_draft(path: Path, shape: DraftShape) -> tuple[Draft, Tensor | None]:
    """Load a draft for the target of `shape`, and its map to target ids if it has one."""
    config = json.loads((path / CONFIG).read_text())
    is_stable = bool(config.get("norm_output"))
    changes = {"method": METHODS[is_stable], "draft_vocab_size": config["draft_vocab_size"]}
    layers = config.get("eagle_aux_hidden_state_layer_ids")
    if layers:
        changes["layers_read"] = tuple(layers)
    draft = Draft(DraftShape(**{**shape.__dict__, **changes}))
    tensors = load_file(path / WEIGHTS)
    offsets = tensors.pop("d2t", None)
    tensors.pop("t2d", None)
    draft.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return draft.eval(), None if offsets is None else offsets + torch.arange(len(offsets))
