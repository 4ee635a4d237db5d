"""Training of the demo target: ``python -m eaglegate.lab.training.train_target --folder DIR``.

After an interruption, it continues from its last checkpoint. Progress is counted in steps, so the
result does not depend on the speed of the machine. At the end the target is in ``DIR/target``.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eaglegate.lab.training.batches import Corpus, batches
from eaglegate.lab.training.checkpoint import save_target
from eaglegate.lab.training.corpus import ANSWER, SETS
from eaglegate.lab.training.induction import wire
from eaglegate.lab.training.llama import Llama, LlamaShape, Rope
from eaglegate.lab.training.optimiser import Clock, Optimiser, RateStage, Running, save_state

CHECKPOINT = "target-state.pt"
STEP_BATCHES = 2
SAVE_EVERY_S = 120


@dataclass(frozen=True)
class DataStage:
    """Sets that are read from a step on."""

    first_step: int
    short: str
    long: str = ""
    long_share: float = 0.0


@dataclass(frozen=True)
class Recipe:
    rates: tuple[RateStage, ...] = (
        RateStage(3200, warmup=30, decay_from=0.5, final=0.01),
        RateStage(4200, scale=0.5),
        RateStage(1400, scale=0.3, warmup=30),
    )
    data: tuple[DataStage, ...] = (
        DataStage(0, "short"),
        DataStage(150, "short", "long", 0.15),
        DataStage(2080, "short", "long", 0.28),
        DataStage(2496, "dense", "long", 0.2),  # single turns, with more answers per token
        DataStage(3200, "last", "long", 0.3),  # with tools that often go unused
        DataStage(7400, "close", "far", 0.35),  # with tools of similar names
    )
    batch_tokens: int = 2560
    """Padded tokens of a batch."""
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    seed: int = 1

    @property
    def end(self) -> int:
        return sum(stage.steps for stage in self.rates)

    def scale(self, step: int) -> float:
        """Return the learning rate factor of a step."""
        for stage in self.rates:
            if step < stage.steps:
                break
            step -= stage.steps
        return stage.rate(step)

    def kind(self, step: int) -> str:
        """Choose the set for a step. The draw is fixed for each step."""
        stage = next(stage for stage in reversed(self.data) if stage.first_step <= step)
        draw = np.random.default_rng([self.seed, step]).random()
        return stage.long if draw < stage.long_share else stage.short


class Training:
    """Model with its optimiser and its progress."""

    def __init__(self, recipe: Recipe, shape: LlamaShape, device: str) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device = recipe, device
        model = Llama(shape)
        wire(model)
        self.model = model.to(device)
        self.rope = Rope.table(
            shape.max_position_embeddings, shape.head_dim, shape.rope_theta, device
        )
        self.optimiser = Optimiser(model)
        self.means: dict[str, Running] = {}
        """Loss of answers by set."""
        self.step = 0

    def backward(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Add the gradients of a batch. Return its summed answer loss and answer tokens."""
        ids, weights = ids.to(self.device), weights.to(self.device)
        with torch.autocast(self.device, torch.bfloat16):
            hidden = self.model(ids, self.rope[: ids.shape[1]])[:, :-1]
            counts = weights[:, 1:] > 0
            logits = self.model.lm_head(hidden[counts])
        loss = F.cross_entropy(logits.float(), ids[:, 1:][counts], reduction="none")
        weight = weights[:, 1:][counts]
        ((loss * weight).sum() / (0.14 * self.recipe.batch_tokens * 2)).backward()
        answers = weight == ANSWER
        return torch.stack([loss.detach()[answers].sum(), answers.sum().float()]).cpu()

    def take_step(self, data: Iterator[tuple[Tensor, Tensor]]) -> None:
        sums = sum((self.backward(*next(data)) for _ in range(STEP_BATCHES)), torch.zeros(2))
        loss, tokens = sums.tolist()
        kind = self.recipe.kind(self.step)
        self.means.setdefault(kind, Running()).add(loss / max(1.0, tokens))
        scale = self.recipe.scale(self.step)
        self.optimiser.step(self.recipe.matrix_lr * scale, self.recipe.other_lr * scale)
        self.step += 1

    def describe(self) -> str:
        means = ", ".join(f"{name} {mean}" for name, mean in self.means.items())
        return f"answer loss {means}, rate {self.recipe.scale(self.step - 1):.3f}"

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "means": self.means,
        }

    def load(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, weights_only=False, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.means = state["step"], state["means"]


def open_streams(
    folder: Path, recipe: Recipe, step: int
) -> dict[str, Iterator[tuple[Tensor, Tensor]]]:
    """Return streams of batches by set, resumed at a step."""
    num_used = Counter(recipe.kind(i) for i in range(step))
    return {
        name: batches(
            Corpus.load(folder / f"{name}.npz"),
            recipe.batch_tokens,
            recipe.seed * 10 + number,
            num_used[name] * STEP_BATCHES,
        )
        for number, name in enumerate(SETS)
    }


def run(
    recipe: Recipe, shape: LlamaShape, folder: Path, device: str = "cpu", stop_at: int | None = None
) -> Training:
    """Train from the last checkpoint in `folder` to the end of the recipe, or to `stop_at`."""
    training = Training(recipe, shape, device)
    path = folder / CHECKPOINT
    if path.exists():
        training.load(path)
    streams = open_streams(folder / "data", recipe, training.step)
    clock = Clock(recipe.end, training.step)
    end = stop_at or recipe.end
    save_time = time.monotonic()
    while training.step < end:
        training.take_step(streams[recipe.kind(training.step)])
        if training.step % 25 == 0 or training.step in (5, recipe.end):
            print(f"{clock.describe(training.step)}: {training.describe()}", flush=True)
        if time.monotonic() - save_time > SAVE_EVERY_S or training.step == end:
            save_state(training.state(), path)
            save_time = time.monotonic()
    return training


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder that holds data/ and the training state"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    training = run(Recipe(), LlamaShape(), options.folder, options.device)
    save_target(training.model, options.folder / "data" / "tokenizer", options.folder / "target")


if __name__ == "__main__":
    main()
