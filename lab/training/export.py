"""Export of the trained target as a checkpoint.

python -m eaglegate.lab.training.export --folder RUN --out DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from eaglegate.lab.training.checkpoint import save_target
from eaglegate.lab.training.llama import Llama, LlamaShape
from eaglegate.lab.training.train_target import CHECKPOINT, Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder of the training state")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options = parser.parse_args()
    state = torch.load(options.folder / CHECKPOINT, weights_only=False, map_location="cpu")
    model = Llama(LlamaShape(**state["shape"]))
    model.load_state_dict(state["model"])
    tokenizer = options.folder / "data" / "tokenizer"
    save_target(model, tokenizer, options.out, dtype=getattr(torch, options.dtype))
    size = (options.out / "model.safetensors").stat().st_size
    recipe = Recipe(**state["recipe"])
    progress = f"{state['step']} of {recipe.end} steps, {state['tokens']:,} tokens"
    print(f"{options.out}: {size:,} bytes, after {progress}")


if __name__ == "__main__":
    main()
