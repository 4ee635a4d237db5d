"""The demo in the shape of a large Llama: the same texts and acceptance at that model's cost.

    python -m eaglegate.lab.training.large_shape --out DIR [--device cuda]

The defaults are the shape of an 8B model, except for the demo's vocabulary: 14 GB in bfloat16, in
``DIR/target`` and ``DIR/eagle3_1``. For benchmarks only.

The demo fills the first rows and columns of every matrix. The rest is noise, so that no
multiplication is by zeros; the matrices that write to the residual stream let next to nothing of
the noise through (``CLOSED``). Three things keep the function:

- RMS norms: a vector padded from h to H entries has a mean square h / H times as large. So the
  norm's weights shrink by sqrt(h / H), and its epsilon by h / H.
- Rotary positions: a head of 64 turns pair i by theta^(-i/32), a head of 128 by theta^(-i/64). So
  pair i of a small head becomes pair 2i of a large one.
- Scaled dot products: a head of 128 divides by sqrt(128) instead of sqrt(64). So queries grow by
  sqrt(2).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from eaglegate.lab.training.checkpoint import (
    CONFIG,
    DEMO,
    GENERATION_CONFIG,
    WEIGHTS,
    copy_tokenizer,
    dtype_name,
    read_json,
    save_tensors,
    spread_layers,
    write_json,
)

HEAD = 128
SMALL_HEAD = 64
NOISE, CLOSED = 0.02, 1e-6
"""Standard deviations of filled weights, and of those that would write to the residual stream."""
SHARD_BYTES = 2 << 30
ROTARY = torch.cat([2 * torch.arange(32), 64 + 2 * torch.arange(32)])
"""Rows of a large head, in order of the rows of a small one: pairs are (i, i + half)."""


@dataclass(frozen=True)
class LargeShape:
    """Sizes of the large model, in the words of a Llama's configuration."""

    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    max_position_embeddings: int = 32768
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"

    @property
    def group(self) -> int:
        """Query heads per key head. The demo has one, so only the first of each group is used."""
        return self.num_attention_heads // self.num_key_value_heads

    def describe(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the configuration of a model with the demo's configuration ``config``."""
        own = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        shrink = int(str(config["hidden_size"])) / self.hidden_size
        return {
            **config,
            **{name: getattr(self, name) for name in (*own, "max_position_embeddings")},
            "head_dim": HEAD,
            "rms_norm_eps": float(str(config["rms_norm_eps"])) * shrink,
            "torch_dtype": dtype_name(self.dtype),
        }


class Enlarger:
    """Makes large tensors of the demo's."""

    def __init__(self, shape: LargeShape, hidden_size: int) -> None:
        self.shape = shape
        self.demo_size = hidden_size
        self._columns = torch.arange(hidden_size)

    def noise(self, rows: int, columns: int, deviation: float = NOISE) -> Tensor:
        shape = self.shape
        return torch.randn(rows, columns, device=shape.device, dtype=shape.dtype) * deviation

    def place(self, matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
        device = self.shape.device
        matrix[rows.to(device)[:, None], columns.to(device)] = values.to(device, self.shape.dtype)
        return matrix

    def widen(self, tensor: Tensor) -> Tensor:
        """Pad the columns with zeros: (V, h) -> (V, H)."""
        matrix = torch.zeros(
            tensor.shape[0],
            self.shape.hidden_size,
            device=self.shape.device,
            dtype=self.shape.dtype,
        )
        return self.place(matrix, torch.arange(tensor.shape[0]), self._columns, tensor)

    def norm(self, tensor: Tensor) -> Tensor:
        shrink = math.sqrt(self.demo_size / self.shape.hidden_size)
        weights = torch.full((self.shape.hidden_size,), shrink)
        weights[: self.demo_size] = tensor.float() * shrink
        return weights.to(self.shape.device, self.shape.dtype)

    def attention(
        self, layer: Mapping[str, Tensor], columns: Tensor, width: int, is_silent: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the projections of one layer, by name. A silent layer contributes nothing.

        ``columns`` are the positions of the demo's inputs among the ``width`` inputs.
        """
        shape, dims = self.shape, torch.arange(SMALL_HEAD)
        heads = range(layer["q_proj.weight"].shape[0] // SMALL_HEAD)
        queries, keys = shape.num_attention_heads * HEAD, shape.num_key_value_heads * HEAD
        query_weights = layer["q_proj.weight"].float() * math.sqrt(HEAD / SMALL_HEAD)
        outputs = _list_rows(heads, dims, shape.group)
        parts = (
            ("q_proj", queries, width, _list_rows(heads, ROTARY, shape.group), columns),
            ("k_proj", keys, width, _list_rows(heads, ROTARY), columns),
            ("v_proj", keys, width, _list_rows(heads, dims), columns),
            ("o_proj", shape.hidden_size, queries, self._columns, outputs),
        )
        yield from self._fill(parts, {**layer, "q_proj.weight": query_weights}, is_silent)

    def mlp(
        self, layer: Mapping[str, Tensor], is_silent: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        hidden, intermediate = self.shape.hidden_size, self.shape.intermediate_size
        rows = torch.arange(layer["gate_proj.weight"].shape[0])
        parts = (
            ("gate_proj", intermediate, hidden, rows, self._columns),
            ("up_proj", intermediate, hidden, rows, self._columns),
            ("down_proj", hidden, intermediate, self._columns, rows),
        )
        yield from self._fill(parts, layer, is_silent)

    def _fill(
        self,
        parts: Iterable[tuple[str, int, int, Tensor, Tensor]],
        layer: Mapping[str, Tensor],
        is_silent: bool,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each part, of rows and columns, with the demo's weights in some of both."""
        for name, rows, columns, own_rows, own_columns in parts:
            is_output = name in ("o_proj", "down_proj")
            matrix = self.noise(rows, columns, CLOSED if is_output else NOISE)
            if not is_silent:
                self.place(matrix, own_rows, own_columns, layer[f"{name}.weight"])
            yield f"{name}.weight", matrix


def _list_rows(heads: Iterable[int], rows: Tensor, group: int = 1) -> Tensor:
    """Return the rows that the demo's heads take, one of every ``group`` large heads each."""
    return torch.cat([head * group * HEAD + rows for head in heads])


def enlarge_target(
    weights: Mapping[str, Tensor], layers: int, enlarger: Enlarger
) -> Iterator[tuple[str, Tensor]]:
    """Yield the target's tensors. Every demo layer is followed by silent ones."""
    shape = enlarger.shape
    yield "model.embed_tokens.weight", enlarger.widen(weights["model.embed_tokens.weight"])
    yield "lm_head.weight", enlarger.widen(weights["lm_head.weight"])
    yield "model.norm.weight", enlarger.norm(weights["model.norm.weight"])
    copies = shape.num_hidden_layers // layers
    columns = torch.arange(enlarger.demo_size)
    for index in range(shape.num_hidden_layers):
        source, is_silent = index // copies, index % copies > 0
        layer = select(weights, f"model.layers.{source}.")
        name = f"model.layers.{index}"
        attention, mlp = select(layer, "self_attn."), select(layer, "mlp.")
        for key, tensor in enlarger.attention(attention, columns, shape.hidden_size, is_silent):
            yield f"{name}.self_attn.{key}", tensor
        for key, tensor in enlarger.mlp(mlp, is_silent):
            yield f"{name}.mlp.{key}", tensor
        for key in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            yield f"{name}.{key}", enlarger.norm(layer[key])


def enlarge_draft(
    weights: Mapping[str, Tensor], enlarger: Enlarger
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an EAGLE 3.1 draft, which reads three layers of the target."""
    hidden, columns = enlarger.shape.hidden_size, torch.arange(enlarger.demo_size)
    parts = torch.cat([part * hidden + columns for part in range(3)])
    fused = enlarger.noise(hidden, 3 * hidden, CLOSED)
    yield "fc.weight", enlarger.place(fused, columns, parts, weights["fc.weight"])
    for part in range(3):
        yield f"fc_norm.{part}.weight", enlarger.norm(weights[f"fc_norm.{part}.weight"])
    yield "lm_head.weight", enlarger.widen(weights["lm_head.weight"])
    yield "norm.weight", enlarger.norm(weights["norm.weight"])
    layer = select(weights, "midlayer.")
    # The layer's input is the token's embedding beside the fused hidden state.
    inputs = torch.cat([columns, hidden + columns])
    for key, tensor in enlarger.attention(select(layer, "self_attn."), inputs, 2 * hidden):
        yield f"midlayer.self_attn.{key}", tensor
    for key, tensor in enlarger.mlp(select(layer, "mlp.")):
        yield f"midlayer.mlp.{key}", tensor
    for key in ("hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"):
        yield f"midlayer.{key}", enlarger.norm(layer[key])


def select(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def write_checkpoint(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], config: Mapping[str, object]
) -> None:
    """Write a checkpoint in shards, so that host memory never holds all of it."""
    shard: dict[str, Tensor] = {}
    index: dict[str, str] = {}
    shards = 0
    for name, tensor in tensors:
        shard[name] = tensor.cpu()
        index[name] = f"model-{shards:05}.safetensors"
        if sum(part.nbytes for part in shard.values()) >= SHARD_BYTES:
            save_tensors(shard, config, folder, index[name])
            shard, shards = {}, shards + 1
    if shards == 0:
        save_tensors(shard, config, folder)
        return
    if shard:
        save_tensors(shard, config, folder, f"model-{shards:05}.safetensors")
    write_json(folder / f"{WEIGHTS}.index.json", {"metadata": {}, "weight_map": index})


def write_large_demo(shape: LargeShape, out: Path, demo: Path = DEMO) -> None:
    """Write ``out/target`` and ``out/eagle3_1``."""
    torch.manual_seed(7)
    config = read_json(demo / "target" / CONFIG)
    layers, enlarger = config["num_hidden_layers"], Enlarger(shape, config["hidden_size"])
    weights = load_file(demo / "target" / WEIGHTS)
    config = {**shape.describe(config), "num_hidden_layers": shape.num_hidden_layers}
    write_checkpoint(out / "target", enlarge_target(weights, layers, enlarger), config)
    copy_tokenizer(demo / "target", out / "target", (GENERATION_CONFIG,))
    config = spread_layers(read_json(demo / "eagle3_1" / CONFIG), layers, shape.num_hidden_layers)
    weights = load_file(demo / "eagle3_1" / WEIGHTS)
    write_checkpoint(out / "eagle3_1", enlarge_draft(weights, enlarger), shape.describe(config))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    for option in fields(LargeShape):
        if option.name != "dtype":
            flag = f"--{option.name.replace('_', '-')}"
            parser.add_argument(flag, type=type(option.default), default=option.default)
    options = vars(parser.parse_args())
    out = options.pop("out")
    write_large_demo(LargeShape(**options), out)


if __name__ == "__main__":
    main()
