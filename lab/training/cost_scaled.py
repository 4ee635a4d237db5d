"""A cost-scaled copy of the demo: the same function at a higher cost, for benchmarks only.

python -m eaglegate.lab.training.cost_scaled --identity-layers 32 --out DIR

The demo target is as cheap as its draft, so speculation cannot save time. The copy has identity
layers (with zero output projections) between the real ones. Answers and acceptance stay the same,
and a target step has a realistic cost relative to the draft. Label results "cost-scaled".
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
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

LAYER = re.compile(r"(.*layers\.)(\d+)(\..*)")


def cost_scaled_demo(
    target: Path,
    drafts: Sequence[Path],
    identity_layers: int,
    out: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write `out/target`, and each draft under its own name with its layer numbers adjusted.

    Raises ValueError if the layers cannot be spread evenly.
    """
    config = read_json(target / CONFIG)
    layers = int(config["num_hidden_layers"])
    if identity_layers % layers:
        raise ValueError(
            f"{identity_layers} identity layers cannot be spread over {layers} layers evenly"
        )
    total = layers + identity_layers
    config["num_hidden_layers"] = total
    config["cost_scaled"] = f"{identity_layers} identity layers: same function, higher cost"
    config["torch_dtype"] = dtype_name(dtype)
    tensors = insert_identity(load_file(target / WEIGHTS), total // layers, dtype)
    save_tensors(tensors, config, out / "target")
    copy_tokenizer(target, out / "target", (GENERATION_CONFIG,))
    for draft in drafts:
        folder = out / draft.name
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, spread_layers(read_json(draft / CONFIG), layers, total))
        shutil.copy(draft / WEIGHTS, folder / WEIGHTS)


def insert_identity(
    tensors: Mapping[str, Tensor], copies: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Make `copies` of every layer; the outputs of all but the first are zero and add nothing."""
    spread: dict[str, Tensor] = {}
    for name, source in tensors.items():
        tensor = source.to(dtype)
        match = LAYER.fullmatch(name)
        if match is None:
            spread[name] = tensor
            continue
        prefix, number, suffix = match.groups()
        is_output = suffix.endswith(("o_proj.weight", "down_proj.weight"))
        for copy in range(copies):
            key = f"{prefix}{int(number) * copies + copy}{suffix}"
            spread[key] = torch.zeros_like(tensor) if is_output and copy else tensor.clone()
    return spread


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=DEMO / "target")
    parser.add_argument(
        "--draft", type=Path, nargs="*", default=[DEMO / "eagle3", DEMO / "eagle3_1"]
    )
    parser.add_argument("--identity-layers", type=int, required=True, metavar="N")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    cost_scaled_demo(options.target, options.draft, options.identity_layers, options.out)
    print(f"{options.out}: cost-scaled by {options.identity_layers} identity layers")


if __name__ == "__main__":
    main()
