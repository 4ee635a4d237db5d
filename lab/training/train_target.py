"""Training of the demo target: ``python -m eaglegate.lab.training.train_target --folder DIR``.

After an interruption, it continues from its last checkpoint. Progress is counted in steps, so the
result does not depend on the speed of the machine. ``--export OUT`` trains nothing and writes the
trained target as a checkpoint.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglegate.lab.training.batches import Corpus, batches
from eaglegate.lab.training.checkpoint import save_target
from eaglegate.lab.training.corpus import ANSWER
from eaglegate.lab.training.induction import wire
from eaglegate.lab.training.llama import Llama, LlamaShape, Rope
from eaglegate.lab.training.muon import Muon
from eaglegate.lab.training.progress import Clock, Running

CHECKPOINT = "target-state.pt"
SETS = ("short", "long", "dense", "last", "close", "far")


@dataclass(frozen=True)
class Recipe:
    steps: int = 3200
    batch_tokens: int = 2560
    """Padded tokens of a batch."""
    warmup: int = 30
    decay_from: float = 0.5
    final: float = 0.01
    matrix_lr: float = 0.02
    matrix_decay: float = 0.02
    other_lr: float = 3e-3
    long_from: int = 150
    long_share: float = 0.15
    late_from: float = 0.65
    """Share of the steps; compare `dense_from`."""
    late_long_share: float = 0.28
    dense_from: float = 0.78
    """Share of the steps after which short batches are single turns, with more answers per token.
    """
    dense_long_share: float = 0.2
    last_steps: int = 4200
    """Steps after `steps`, at a small rate: short batches with tools that often go unused."""
    last_scale: float = 0.5
    last_long_share: float = 0.3
    close_steps: int = 1400
    """Steps after `last_steps`: tools with similar names, also in long prompts."""
    close_scale: float = 0.3
    close_far_share: float = 0.35
    seed: int = 1
    step_batches: int = 2
    """Batches of a step."""

    @property
    def end(self) -> int:
        return self.steps + self.last_steps + self.close_steps

    def scale(self, step: int) -> float:
        """Return the learning rate factor: warm-up, constant, linear to `final`; later stages to
        zero.
        """
        closing_step = step - self.steps - self.last_steps
        if closing_step >= 0:
            warmup_factor = min(1.0, (closing_step + 1) / self.warmup)
            return self.close_scale * warmup_factor * (1 - closing_step / self.close_steps)
        if step >= self.steps:
            return self.last_scale * (1 - (step - self.steps) / self.last_steps)
        progress = step / self.steps
        if progress < self.decay_from:
            return min(1.0, (step + 1) / self.warmup)
        return max(self.final, (1 - progress) / (1 - self.decay_from))

    def kind(self, step: int) -> str:
        """Choose the set for a step. The draw is fixed for each step."""
        if step < self.long_from:
            return "short"
        draw = np.random.default_rng([self.seed, step]).random()
        if step >= self.steps + self.last_steps:
            return "far" if draw < self.close_far_share else "close"
        if step >= self.steps:
            return "long" if draw < self.last_long_share else "last"
        progress = step / self.steps
        if progress >= self.dense_from:
            return "long" if draw < self.dense_long_share else "dense"
        share = self.long_share if progress < self.late_from else self.late_long_share
        return "long" if draw < share else "short"


class Training:
    """Model with its two optimisers and its progress."""

    def __init__(self, recipe: Recipe, shape: LlamaShape, device: str) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device = recipe, device
        model = Llama(shape)
        wire(model)
        self.model = model.to(device)
        self.rope = Rope.table(
            shape.max_position_embeddings, shape.head_dim, shape.rope_theta, device
        )
        self.matrices = [p for p in model.layers.parameters() if p.ndim == 2]
        matrix_ids = set(map(id, self.matrices))
        self.other_parameters = [p for p in model.parameters() if id(p) not in matrix_ids]
        self.muon = Muon(self.matrices)
        self.adam = torch.optim.AdamW(
            self.other_parameters, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0
        )
        self.step = 0

    def losses(self, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross entropy and weight of every token that counts."""
        with torch.autocast(self.device, torch.bfloat16):
            hidden = self.model(ids, self.rope[: ids.shape[1]])[:, :-1]
            counts = weights[:, 1:] > 0
            logits = self.model.lm_head(hidden[counts])
        loss = F.cross_entropy(logits.float(), ids[:, 1:][counts], reduction="none")
        return loss, weights[:, 1:][counts]

    def backward(self, ids: Tensor, weights: Tensor) -> Tensor:
        """Add the gradients of a batch. Return its summed answer loss and answer tokens."""
        loss, weight = self.losses(ids.to(self.device), weights.to(self.device))
        ((loss * weight).sum() / (0.14 * self.recipe.batch_tokens * 2)).backward()
        answers = weight == ANSWER
        return torch.stack([loss.detach()[answers].sum(), answers.sum().float()]).cpu()

    def update(self) -> None:
        """Take one optimiser step."""
        scale = self.recipe.scale(self.step)
        nn.utils.clip_grad_norm_(self.other_parameters, 1.0)
        self.muon.step(self.recipe.matrix_lr * scale, self.recipe.matrix_decay)
        for group in self.adam.param_groups:
            group["lr"] = self.recipe.other_lr * scale
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.step += 1

    def save(self, path: Path, fields: dict[str, Any]) -> None:
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.buffers,
            "adam": self.adam.state_dict(),
            "step": self.step,
            "recipe": asdict(self.recipe),
            "shape": asdict(self.model.shape),
            **fields,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(path, weights_only=False, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.muon.buffers = state["muon"]
        self.adam.load_state_dict(state["adam"])
        self.step = state["step"]
        return state


class Data:
    """Streams of batches, resumed at the recipe's step."""

    def __init__(self, folder: Path, recipe: Recipe, step: int) -> None:
        self.recipe = recipe
        num_used = Counter(recipe.kind(i) for i in range(step))
        self.streams: dict[str, Iterator[tuple[Tensor, Tensor]]] = {}
        for number, name in enumerate(SETS):
            corpus = Corpus.load(folder / f"{name}.npz")
            skip = num_used[name] * recipe.step_batches
            seed = recipe.seed * 10 + number
            self.streams[name] = batches(corpus, recipe.batch_tokens, seed, skip)

    def draw_batches(self, step: int) -> list[tuple[Tensor, Tensor]]:
        stream = self.streams[self.recipe.kind(step)]
        return [next(stream) for _ in range(self.recipe.step_batches)]


class Report:
    """Report that is printed during training and kept in the state."""

    def __init__(self, recipe: Recipe, means: dict[str, Running] | None, tokens: int) -> None:
        self.recipe = recipe
        self.means = {name: Running() for name in SETS} | (means or {})
        self.tokens = tokens

    def add(self, step: int, loss: float, answers: float, tokens: float) -> None:
        self.means[self.recipe.kind(step)].add(loss / max(1.0, answers))
        self.tokens += int(tokens)

    def line(self, step: int) -> str:
        means = ", ".join(f"{name} {mean}" for name, mean in self.means.items())
        rate = self.recipe.scale(step - 1)
        return f"{self.tokens / 1e6:.2f}M tokens, answer loss {means}, rate {rate:.3f}"


def run(
    recipe: Recipe,
    shape: LlamaShape,
    folder: Path,
    device: str = "cpu",
    save_every_s: float = 120,
    stop_at: int | None = None,
) -> Training:
    """Train from the last checkpoint in `folder` to the end of the recipe, or to `stop_at`."""
    training = Training(recipe, shape, device)
    path = folder / CHECKPOINT
    state = training.load(path) if path.exists() else {}
    report = Report(recipe, state.get("means"), state.get("tokens", 0))
    data = Data(folder / "data", recipe, training.step)
    clock = Clock(recipe.end, training.step)
    end = stop_at or recipe.end
    save_time = time.monotonic()
    while training.step < end:
        step = training.step
        report.add(step, *take_step(training, data.draw_batches(step)))
        if training.step % 25 == 0 or training.step in (5, recipe.end):
            print(f"{clock.describe(training.step)}: {report.line(training.step)}", flush=True)
        is_due = time.monotonic() - save_time > save_every_s
        if is_due or training.step == end:
            training.save(path, {"means": report.means, "tokens": report.tokens})
            save_time = time.monotonic()
    return training


def take_step(training: Training, part: list[tuple[Tensor, Tensor]]) -> tuple[float, float, float]:
    """Step on all batches. Return summed answer loss, answer tokens, padded tokens."""
    sums = torch.zeros(3)
    for ids, weights in part:
        sums[:2] += training.backward(ids, weights)
        sums[2] += ids.numel()
    training.update()
    loss, answers, tokens = sums.tolist()
    return loss, answers, tokens


def export(folder: Path, out: Path) -> None:
    """Write the target whose training state is in ``folder`` as a checkpoint."""
    state = torch.load(folder / CHECKPOINT, weights_only=False, map_location="cpu")
    model = Llama(LlamaShape(**state["shape"]))
    model.load_state_dict(state["model"])
    save_target(model, folder / "data" / "tokenizer", out)
    print(f"{out}: after {state['step']} of {Recipe(**state['recipe']).end} steps")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder that holds data/ and the training state"
    )
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--last-steps", type=int, default=Recipe.last_steps)
    parser.add_argument("--close-steps", type=int, default=Recipe.close_steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--export", type=Path, metavar="OUT", help="write the trained target there")
    options = parser.parse_args()
    if options.export:
        export(options.folder, options.export)
        return
    recipe = Recipe(
        steps=options.steps,
        last_steps=options.last_steps,
        close_steps=options.close_steps,
        seed=options.seed,
    )
    run(recipe, LlamaShape(), options.folder, options.device)


if __name__ == "__main__":
    main()
