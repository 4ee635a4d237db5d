"""The demo's model card: description, recipe and measured tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from eaglegate.lab.training.draft_training import STATE
from eaglegate.lab.training.tables import table
from eaglegate.lab.training.train_target import CHECKPOINT

INTRODUCTION = Path(__file__).parent / "model_card.md"
DRAFTS = {"EAGLE 3": "eagle3", "EAGLE 3.1": "eagle3_1"}


def state_of(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=False, map_location="cpu")
    return state


def settings(recipe: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in recipe.items())


def training_table(folder: Path) -> str:
    target = state_of(folder / CHECKPOINT)
    means = target["means"]
    means_text = "answer loss " + ", ".join(f"{name} {mean}" for name, mean in means.items())
    rows = [["target", str(target["step"]), f"{target['tokens'] / 1e6:.1f} M", means_text]]
    for label, name in DRAFTS.items():
        draft = state_of(folder / name / STATE)
        tokens = f"about {draft['step'] * draft['recipe'].batch_tokens / 1e6:.1f} M"
        hits = " ".join(str(mean)[:5] for mean in draft["accuracy"])
        rows.append([label, str(draft["step"]), tokens, f"accuracy by depth {hits}"])
    return table(["model", "steps", "padded tokens", "running means at the end"], rows)


def seeds(folder: Path) -> list[int]:
    """Return the seeds of the drafts that are fully trained."""
    states = [state_of(path) for path in folder.glob(f"eagle3*/{STATE}")]
    return sorted({s["recipe"].seed for s in states if s["step"] == s["recipe"].steps})


def card(folder: Path) -> str:
    target = state_of(folder / CHECKPOINT)
    draft = state_of(folder / "eagle3_1" / STATE)
    parameters = sum(tensor.numel() for tensor in target["model"].values())
    introduction = INTRODUCTION.read_text().format(
        parameters=f"{parameters / 1e6:.2f}",
        target_size=(folder / "target" / "model.safetensors").stat().st_size,
        draft_size=(folder / "eagle3_1" / "model.safetensors").stat().st_size,
    )
    sections = [
        introduction.rstrip(),
        "## Training\n\n" + training_table(folder),
        f"Target recipe: {settings(target['recipe'])}.",
        f"Draft recipe: {settings(asdict(draft['recipe']))}. Draft seeds trained: {seeds(folder)}.",
        (folder / "evaluation" / "evaluation.md").read_text().rstrip(),
    ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(card(options.folder))
    print(f"{options.out}: written")


if __name__ == "__main__":
    main()
