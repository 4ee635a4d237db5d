"""A cost-scaled copy of the demo: the same function at a higher cost, for benchmarks only.

python -m eaglegate.lab.training.cost_scaled --identity-layers 32 --out DIR

The demo target is as cheap as its draft, so speculation cannot save time. The copy has identity
layers (with zero output projections) between the real ones. Answers and acceptance stay the same,
and a target step has a realistic cost relative to the draft. Label results "cost-scaled".
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from eaglegate.lab.training.checkpoint import CONFIG, WEIGHTS, load_llama, save_target, write_json
from eaglegate.lab.training.target import engine_default

DEMO = Path(__file__).parents[2] / "engine" / "demo"


def cost_scaled_demo(
    target: Path,
    drafts: Sequence[Path],
    identity_layers: int,
    out: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write `out/target`, and each draft under its own name with its layer numbers adjusted."""
    model = load_llama(target)
    save_target(model, target, out / "target", identity_layers, dtype)
    layers = model.shape.num_hidden_layers
    for draft in drafts:
        folder = out / draft.name
        folder.mkdir(parents=True, exist_ok=True)
        config = json.loads((draft / CONFIG).read_text())
        source_layers = config.get("eagle_aux_hidden_state_layer_ids") or engine_default(layers)
        spread = [layer * (layers + identity_layers) // layers for layer in source_layers]
        config["eagle_aux_hidden_state_layer_ids"] = spread
        write_json(folder / CONFIG, config)
        shutil.copy(draft / WEIGHTS, folder / WEIGHTS)


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
