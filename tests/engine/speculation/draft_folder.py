"""A draft's folder in memory: read, changed, written again."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglegate.engine.speculation.drafts.inspection.weights import read_header

DEMO = Path(__file__).parents[3] / "engine" / "demo"


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


AUX = 3


@dataclass(frozen=True)
class Array:
    """A tensor as bytes; ``data`` holds bfloat16 as uint16."""

    dtype: str
    data: NDArray[Any]


def bf16(values: NDArray[Any]) -> Array:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return Array("BF16", (bits >> 16).astype(np.uint16))


def ones(*shape: int) -> Array:
    return bf16(np.ones(shape))


def floats(array: Array) -> NDArray[Any]:
    return (array.data.astype(np.uint32) << 16).view(np.float32)


def noise(*shape: int) -> Array:
    return bf16(np.random.default_rng(0).normal(0, 0.02, shape))


@dataclass
class Folder:
    """A model folder in memory: edit it, then write it."""

    config: dict[str, Any]
    tensors: dict[str, Array]
    config_text: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    shards: int = 1
    weights: bool = True
    exists: bool = True

    def write(self, where: Path) -> None:
        if not self.exists:
            return
        where.mkdir(parents=True)
        text = json.dumps(self.config) if self.config_text is None else self.config_text
        if text:
            (where / "config.json").write_text(text)
        if self.weights:
            self.write_weights(where)
        for name, data in self.files.items():
            (where / name).write_bytes(data)

    def write_weights(self, where: Path) -> None:
        names = sorted(self.tensors)
        if self.shards == 1:
            write_safetensors(where / "model.safetensors", self.tensors)
            return
        weight_map: dict[str, str] = {}
        for index in range(self.shards):
            file = f"model-{index + 1:05}-of-{self.shards:05}.safetensors"
            part = {name: self.tensors[name] for name in names[index :: self.shards]}
            write_safetensors(where / file, part)
            weight_map |= dict.fromkeys(part, file)
        index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (where / "model.safetensors.index.json").write_text(index_text)


def write_safetensors(file: Path, tensors: Mapping[str, Array]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, array in tensors.items():
        end = position + array.data.nbytes
        header[name] = {
            "dtype": array.dtype,
            "shape": list(array.data.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array.data).tobytes())


def read_folder(path: Path) -> Folder:
    kinds = {"BF16": np.uint16, "F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
    tensors = {}
    for name, tensor in read_header(path / "model.safetensors").items():
        count = int(np.prod(tensor.shape))
        data = np.fromfile(tensor.file, kinds[tensor.dtype], count, offset=tensor.start)
        tensors[name] = Array(tensor.dtype, data.reshape(tensor.shape))
    return Folder(json.loads((path / "config.json").read_text()), tensors)


Change = Callable[[Folder], None]


def unchanged(draft: Folder) -> None:
    """The demo's draft as it is."""


def width(draft: Folder) -> int:
    return int(draft.config["hidden_size"])


def whole_head(draft: Folder) -> None:
    """Undo a reduced vocabulary, so that cases start alike whatever the demo ships."""
    if "d2t" not in draft.tensors:
        return
    offsets, rows = draft.tensors.pop("d2t").data, draft.tensors["lm_head.weight"].data
    draft.tensors.pop("t2d", None)
    full = np.zeros((int(draft.config["vocab_size"]), rows.shape[1]), rows.dtype)
    full[offsets + np.arange(len(offsets))] = rows
    draft.tensors["lm_head.weight"] = Array("BF16", full)
    draft.config["draft_vocab_size"] = len(full)
