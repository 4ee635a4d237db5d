"""Checkpoints on disk, in the layouts that vLLM loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eaglegate.lab.training.eagle import METHODS, Draft, DraftShape
from eaglegate.lab.training.llama import Llama
from eaglegate.lab.training.target import engine_default

DEMO = Path(__file__).parents[2] / "engine" / "demo"
GENERATION = {"eos_token_id": 3, "pad_token_id": 0, "temperature": 0.0}
"""Defaults of generation: greedy, because a model this small has no good second choices."""
WEIGHTS, CONFIG, GENERATION_CONFIG = "model.safetensors", "config.json", "generation_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LAYERS = "eagle_aux_hidden_state_layer_ids"
"""Key of a draft's configuration: the layers of the target that it reads."""


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def save_tensors(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], out: Path, name: str = WEIGHTS
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    contiguous = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
    save_file(contiguous, out / name, metadata={"format": "pt"})
    write_json(out / CONFIG, config)


def copy_tokenizer(source: Path, out: Path, more: tuple[str, ...] = ()) -> None:
    for name in (*TOKENIZER, *more):
        shutil.copy(source / name, out / name)


def save_target(
    model: Llama, tokenizer: Path, out: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write weights, configuration and tokenizer."""
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": tensor.to(dtype)
        for name, tensor in model.state_dict().items()
    }
    save_tensors(tensors, model.shape.config(dtype_name(dtype)), out)
    write_json(out / GENERATION_CONFIG, GENERATION)
    copy_tokenizer(tokenizer, out)


def save_draft(
    draft: Draft, out: Path, target_ids: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write a draft. `target_ids` are those of a reduced draft vocabulary, in rising order."""
    tensors = {name: tensor.to(dtype) for name, tensor in draft.state_dict().items()}
    if target_ids is not None:
        tensors["d2t"] = target_ids.cpu().long() - torch.arange(len(target_ids))
        is_kept = torch.zeros(draft.shape.vocab_size, dtype=torch.bool)
        is_kept[target_ids.cpu()] = True
        tensors["t2d"] = is_kept
    save_tensors(tensors, draft.shape.config(dtype_name(dtype)), out)


def load_draft(path: Path, shape: DraftShape) -> tuple[Draft, Tensor | None]:
    """Load a draft for the target of `shape`, and its map to target ids if it has one."""
    config = read_json(path / CONFIG)
    is_stable = bool(config.get("norm_output"))
    changes = {"method": METHODS[is_stable], "draft_vocab_size": config["draft_vocab_size"]}
    if layers := config.get(LAYERS):
        changes["layers_read"] = tuple(layers)
    draft = Draft(DraftShape(**{**shape.__dict__, **changes}))
    tensors = load_file(path / WEIGHTS)
    offsets = tensors.pop("d2t", None)
    tensors.pop("t2d", None)
    draft.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return draft.eval(), None if offsets is None else offsets + torch.arange(len(offsets))


def spread_layers(config: Mapping[str, Any], old: int, new: int) -> dict[str, Any]:
    """Return a draft's configuration for a target whose `old` layers stand among `new` ones."""
    layers = config.get(LAYERS) or engine_default(old)
    return {**config, LAYERS: [layer * new // old for layer in layers]}
