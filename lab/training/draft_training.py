"""Training of one EAGLE head on a frozen target, unrolled to the depth that is served."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eaglegate.lab.training.batches import Corpus, batches
from eaglegate.lab.training.checkpoint import CONFIG, save_draft
from eaglegate.lab.training.eagle import Draft, DraftShape, known_tokens, unroll
from eaglegate.lab.training.optimiser import Clock, Optimiser, RateStage, Running, save_state
from eaglegate.lab.training.target import TargetModel

STATE = "training-state.pt"


@dataclass(frozen=True)
class DraftRecipe:
    steps: int = 1000
    batch_tokens: int = 3072
    """Padded tokens per step."""
    depths: int = 7
    depth_decay: float = 0.9
    """Factor of the loss weight for each further depth."""
    matrix_lr: float = 0.02
    other_lr: float = 1e-3
    seed: int = 1

    def scale(self, step: int) -> float:
        return RateStage(self.steps, warmup=20, decay_from=0.4, final=0.02).rate(step)


@dataclass(frozen=True)
class Rows:
    """Positions of a batch from which the draft speculates."""

    index: Tensor
    """[batch, rows]; row i + 1 is the next position."""
    mask: Tensor

    @staticmethod
    def select(answers: Tensor) -> Rows:
        """Return the rows from the last prompt token on that at least two tokens follow."""
        marks = answers.float()
        start = marks.argmax(1) - 1
        end = answers.shape[1] - marks.flip(1).argmax(1) - 2
        count = int((end - start).max())
        index = start[:, None] + torch.arange(count, device=answers.device)
        return Rows(index.clamp(max=answers.shape[1] - 1), index < end[:, None])


@dataclass(frozen=True)
class InitialDraft:
    """Draft to start from. `target_ids` are those of a reduced vocabulary."""

    path: Path
    draft: Draft
    target_ids: Tensor | None


@dataclass(frozen=True)
class DraftData:
    """Data to train on, and older data that must not be forgotten, in a share of the batches."""

    corpus: Corpus
    rehearsal: Corpus | None = None
    share: float = 0.0

    def batches(self, tokens: int, seed: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches endlessly in a fixed order; `skip` were used before a restart."""
        if self.rehearsal is None or not self.share:
            yield from batches(self.corpus, tokens, seed, skip=skip)
            return
        draws = np.random.default_rng(seed)
        num_old = int((draws.random(skip) < self.share).sum())
        old_batches = batches(self.rehearsal, tokens, seed + 1, skip=num_old)
        new_batches = batches(self.corpus, tokens, seed, skip=skip - num_old)
        while True:
            yield next(old_batches if draws.random() < self.share else new_batches)


class DraftTraining:
    """Head with its optimisers and its progress."""

    def __init__(
        self,
        target: TargetModel,
        shape: DraftShape,
        recipe: DraftRecipe,
        target_ids: Tensor | None,
        device: str,
        init: InitialDraft | None = None,
    ) -> None:
        self.target, self.shape, self.recipe, self.device = target, shape, recipe, device
        self.target_ids = target_ids
        self.draft = Draft(shape, recipe.seed)
        if init is None:
            self.take_over(target)
        else:
            self.draft.load_state_dict(init.draft.state_dict())
        self.draft.to(device)
        self.rope = target.rope(shape, device)
        self.optimiser = Optimiser(self.draft)
        self.step = 0
        self.accuracy = [Running() for _ in range(recipe.depths)]

    @torch.no_grad()
    def take_over(self, target: TargetModel) -> None:
        """Initialise the head with the target's own output head and final norm."""
        head = target.model.lm_head.weight
        self.draft.lm_head.weight.copy_(head if self.target_ids is None else head[self.target_ids])
        self.draft.norm.weight.copy_(target.model.model.norm.weight)

    def target_view(self, ids: Tensor, rows: Rows) -> tuple[list[Tensor], Tensor]:
        """Return the hidden states to read, and the log-distribution to predict at every row."""
        states, last_states = self.target.states(ids, self.shape.layers_read)
        next_rows = (rows.index + 1).clamp(max=ids.shape[1] - 1)
        row_states = last_states.gather(
            1, next_rows[..., None].expand(-1, -1, last_states.shape[-1])
        )
        logits = self.target.logits(row_states).float()
        if self.target_ids is not None:
            logits = logits[..., self.target_ids]
        return states, logits.log_softmax(-1)

    def loss(self, ids: Tensor, answers: Tensor) -> tuple[Tensor, list[float]]:
        """Return the soft cross entropy summed over depths, and the greedy hits per depth."""
        rows = Rows.select(answers)
        with torch.autocast(self.device, torch.bfloat16):
            states, targets = self.target_view(ids, rows)
            tokens = known_tokens(ids, rows.index)
            depths = min(self.recipe.depths, rows.index.shape[1])
            outputs = unroll(
                self.draft, self.target.embed, states, ids, rows.index, self.rope, depths, tokens
            )
            parts = [
                self.judge_depth(depth, output, targets, rows.mask)
                for depth, output in enumerate(outputs)
            ]
        decay = self.recipe.depth_decay
        total = sum((decay**i * part[0] for i, part in enumerate(parts)), torch.zeros(()))
        return total / rows.mask.sum().clamp(min=1), [part[1] for part in parts]

    def judge_depth(
        self, k: int, output: Tensor, targets: Tensor, row_mask: Tensor
    ) -> tuple[Tensor, float]:
        """Judge a row's guess at depth k against the row k further on at depth 0."""
        rows = row_mask.shape[1] - k
        mask = row_mask[:, k:]
        logits = self.draft.lm_head(output[:, :rows][mask]).float()
        target = targets[:, k:][mask]
        loss = -(target.exp() * logits.log_softmax(-1)).sum()
        hits = logits.argmax(-1) == target.argmax(-1)
        return loss, float(hits.float().mean()) if len(hits) else 0.0

    def update(self, ids: Tensor, answers: Tensor) -> None:
        loss, hits = self.loss(ids.to(self.device), answers.to(self.device))
        loss.backward()
        scale = self.recipe.scale(self.step)
        self.optimiser.step(self.recipe.matrix_lr * scale, self.recipe.other_lr * scale)
        self.step += 1
        for mean, hit in zip(self.accuracy, hits, strict=False):
            mean.add(hit)

    def state(self) -> dict[str, Any]:
        return {
            "draft": self.draft.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "accuracy": self.accuracy,
            "shape": self.shape,
        }

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=False, map_location=self.device)
        if state["shape"] != self.shape:
            raise ValueError(f"{path} belongs to another draft: remove it, or name another folder")
        self.draft.load_state_dict(state["draft"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.accuracy = state["step"], state["accuracy"]


def train_draft(
    target: TargetModel,
    shape: DraftShape,
    data: DraftData,
    recipe: DraftRecipe,
    out: Path,
    target_ids: Tensor | None = None,
    device: str = "cpu",
    save_every_s: float = 120,
    init: InitialDraft | None = None,
) -> DraftTraining:
    """Train to the end of the recipe, from the state in `out` if any, and save the draft."""
    training = DraftTraining(target, shape, recipe, target_ids, device, init)
    out.mkdir(parents=True, exist_ok=True)
    if (out / STATE).exists():
        training.load(out / STATE)
    stream = data.batches(recipe.batch_tokens, recipe.seed, skip=training.step)
    clock = Clock(recipe.steps, training.step)
    save_time = time.monotonic()
    while training.step < recipe.steps:
        ids, weights = next(stream)
        training.update(ids, weights > 0)
        if training.step % 25 == 0 or training.step == recipe.steps:
            hits = " ".join(str(mean)[:5] for mean in training.accuracy)
            print(
                f"{clock.describe(training.step)}: {shape.method} accuracy by depth {hits}",
                flush=True,
            )
        if time.monotonic() - save_time > save_every_s or training.step == recipe.steps:
            save_state(training.state(), out / STATE)
            save_time = time.monotonic()
    save_draft(training.draft, out, target_ids)
    if init is not None:  # a draft takes another's place only with the same config.json
        shutil.copyfile(init.path / CONFIG, out / CONFIG)
    return training
