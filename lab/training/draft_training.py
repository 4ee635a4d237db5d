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
from torch import Tensor, nn

from eaglegate.lab.training.alignment import measure_misalignment
from eaglegate.lab.training.batches import Corpus, batches
from eaglegate.lab.training.checkpoint import CONFIG, save_draft
from eaglegate.lab.training.eagle import Depth, Draft, DraftShape, known_tokens, unroll
from eaglegate.lab.training.muon import Muon
from eaglegate.lab.training.progress import Clock, Running
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
    alignment: float = 0.0
    """Loss weight of ``eaglegate.lab.training.alignment``; the tokens' loss has weight 1."""
    warmup: int = 20
    decay_from: float = 0.4
    final: float = 0.02
    matrix_lr: float = 0.02
    matrix_decay: float = 0.02
    other_lr: float = 1e-3
    seed: int = 1

    def scale(self, step: int) -> float:
        done = step / self.steps
        if done < self.decay_from:
            return min(1.0, (step + 1) / self.warmup)
        return max(self.final, (1 - done) / (1 - self.decay_from))


@dataclass(frozen=True)
class Rows:
    """Positions of a batch from which the draft speculates."""

    index: Tensor
    """[batch, rows]; row i + 1 is the next position."""
    valid: Tensor

    @staticmethod
    def of(answers: Tensor) -> Rows:
        """Return the rows from the last prompt token on that at least two tokens follow."""
        marked = answers.float()
        start = marked.argmax(1) - 1
        end = answers.shape[1] - marked.flip(1).argmax(1) - 2
        count = int((end - start).max())
        index = start[:, None] + torch.arange(count, device=answers.device)
        return Rows(index.clamp(max=answers.shape[1] - 1), index < end[:, None])


@dataclass(frozen=True)
class InitialDraft:
    """Draft to start from. `kept` lists the target ids of a reduced vocabulary."""

    path: Path
    draft: Draft
    kept: Tensor | None

    @property
    def shape(self) -> DraftShape:
        return self.draft.shape


@dataclass(frozen=True)
class DraftData:
    """Data to train on, and older data that must not be forgotten, in a share of the batches."""

    new: Corpus
    old: Corpus | None = None
    share: float = 0.0

    def batches(self, tokens: int, seed: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches endlessly in a fixed order; `skip` were used before a restart."""
        if self.old is None or not self.share:
            yield from batches(self.new, tokens, seed, skip=skip)
            return
        draws = np.random.default_rng(seed)
        used = int((draws.random(skip) < self.share).sum())
        old = batches(self.old, tokens, seed + 1, skip=used)
        new = batches(self.new, tokens, seed, skip=skip - used)
        while True:
            yield next(old if draws.random() < self.share else new)


class DraftTraining:
    """Head with its optimisers and its progress."""

    def __init__(
        self,
        target: TargetModel,
        shape: DraftShape,
        recipe: DraftRecipe,
        kept: Tensor | None,
        device: str,
        init: InitialDraft | None = None,
    ) -> None:
        self.target, self.shape, self.recipe, self.device = target, shape, recipe, device
        self.kept = kept
        self.draft = Draft(shape, recipe.seed)
        if init is None:
            self.take_over(target)
        else:
            self.draft.load_state_dict(init.draft.state_dict())
        self.draft.to(device)
        self.rope = target.rope(shape, device)
        named = dict(self.draft.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and "lm_head" not in name]
        chosen = set(map(id, matrices))
        self.others = [p for p in named.values() if id(p) not in chosen]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(self.others, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.step = 0
        self.accuracy = [Running() for _ in range(recipe.depths)]

    @torch.no_grad()
    def take_over(self, target: TargetModel) -> None:
        """Initialise the head with the target's own output head and final norm."""
        head = target.model.lm_head.weight
        self.draft.lm_head.weight.copy_(head if self.kept is None else head[self.kept])
        self.draft.norm.weight.copy_(target.model.model.norm.weight)

    def target_view(self, ids: Tensor, rows: Rows) -> tuple[list[Tensor], Tensor]:
        """Return the hidden states to read, and the log-distribution to predict at every row."""
        states, final = self.target.states(ids, self.shape.layers_read)
        after = (rows.index + 1).clamp(max=ids.shape[1] - 1)
        hidden = final.gather(1, after[..., None].expand(-1, -1, final.shape[-1]))
        logits = self.target.logits(hidden).float()
        if self.kept is not None:
            logits = logits[..., self.kept]
        return states, logits.log_softmax(-1)

    def loss(self, ids: Tensor, answers: Tensor) -> tuple[Tensor, list[float]]:
        """Return the soft cross entropy summed over depths, and the greedy hits per depth."""
        rows = Rows.of(answers)
        with torch.autocast(self.device, torch.bfloat16):
            states, wanted = self.target_view(ids, rows)
            tokens = known_tokens(ids, rows.index)
            unrolled = unroll(
                self.draft,
                self.target.embed,
                states,
                ids,
                rows.index,
                self.rope,
                min(self.recipe.depths, rows.index.shape[1]),
                tokens,
            )
            parts = list(self.judge_depths(unrolled, wanted, rows))
        decay = self.recipe.depth_decay
        total = sum((decay**i * part[0] for i, part in enumerate(parts)), torch.zeros(()))
        return total / rows.valid.sum().clamp(min=1), [part[1] for part in parts]

    def judge_depths(
        self, unrolled: Iterator[Depth], wanted: Tensor, rows: Rows
    ) -> Iterator[tuple[Tensor, float]]:
        """Yield loss and share of greedy hits of each depth."""
        first: Tensor | None = None
        for depth in unrolled:
            loss, hits = self.at_depth(depth, wanted, rows.valid)
            if self.recipe.alignment and first is not None:
                apart = measure_misalignment(depth, first, rows.index)
                loss = loss + self.recipe.alignment * apart[rows.valid[:, depth.depth :]].sum()
            first = depth.attention if first is None else first
            yield loss, hits

    def at_depth(self, depth: Depth, wanted: Tensor, valid: Tensor) -> tuple[Tensor, float]:
        """Judge a row's guess at depth k against the row k further on at depth 0."""
        k = depth.depth
        rows = valid.shape[1] - k
        here = valid[:, k:]
        logits = self.draft.lm_head(depth.normed[:, :rows][here]).float()
        target = wanted[:, k:][here]
        loss = -(target.exp() * logits.log_softmax(-1)).sum()
        hits = logits.argmax(-1) == target.argmax(-1)
        return loss, float(hits.float().mean()) if len(hits) else 0.0

    def update(self, ids: Tensor, answers: Tensor) -> None:
        loss, hits = self.loss(ids.to(self.device), answers.to(self.device))
        loss.backward()
        scale = self.recipe.scale(self.step)
        nn.utils.clip_grad_norm_(self.others, 1.0)
        self.muon.step(self.recipe.matrix_lr * scale, self.recipe.matrix_decay)
        for group in self.adam.param_groups:
            group["lr"] = self.recipe.other_lr * scale
        self.adam.step()
        self.draft.zero_grad(set_to_none=True)
        self.step += 1
        for mean, hit in zip(self.accuracy, hits, strict=False):
            mean.add(hit)

    def state(self) -> dict[str, Any]:
        return {
            "draft": self.draft.state_dict(),
            "muon": self.muon.buffers,
            "adam": self.adam.state_dict(),
            "step": self.step,
            "accuracy": self.accuracy,
            "recipe": self.recipe,
            "shape": self.shape,
        }

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=False, map_location=self.device)
        if state["shape"] != self.shape:
            raise ValueError(f"{path} belongs to another draft: remove it, or name another folder")
        self.draft.load_state_dict(state["draft"])
        self.muon.buffers = state["muon"]
        self.adam.load_state_dict(state["adam"])
        self.step, self.accuracy = state["step"], state["accuracy"]


def train_draft(
    target: TargetModel,
    shape: DraftShape,
    data: DraftData,
    recipe: DraftRecipe,
    out: Path,
    kept: Tensor | None = None,
    device: str = "cpu",
    save_every_s: float = 120,
    init: InitialDraft | None = None,
) -> DraftTraining:
    """Train to the end of the recipe, from the state in `out` if any, and save the draft."""
    training = DraftTraining(target, shape, recipe, kept, device, init)
    out.mkdir(parents=True, exist_ok=True)
    if (out / STATE).exists():
        training.load(out / STATE)
    stream = data.batches(recipe.batch_tokens, recipe.seed, skip=training.step)
    clock = Clock(recipe.steps, training.step)
    saved = time.monotonic()
    while training.step < recipe.steps:
        ids, weights = next(stream)
        training.update(ids, weights > 0)
        if training.step % 25 == 0 or training.step == recipe.steps:
            hits = " ".join(str(mean)[:5] for mean in training.accuracy)
            print(f"{clock.at(training.step)}: {shape.method} accuracy by depth {hits}", flush=True)
        if time.monotonic() - saved > save_every_s or training.step == recipe.steps:
            save_state(training.state(), out / STATE)
            saved = time.monotonic()
    save_draft(training.draft, out, kept)
    if init is not None:  # a draft takes another's place only with the same config.json
        shutil.copyfile(init.path / CONFIG, out / CONFIG)
    return training


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write the state atomically."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
