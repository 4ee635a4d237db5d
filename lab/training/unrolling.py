"""Drafts that each draft model would have proposed along known answers, without serving them.

The target reads a trajectory once. Every draft then speculates from every position of the answer,
with the target's hidden states as context and its own tokens fed back, as in serving. The engine's
drafts are the draft's most likely tokens (vLLM's ``draft_sample_method`` greedy, its default). Such
a token is accepted exactly if it is the token that the target emits there. The answer, sampled or
not, therefore determines which drafts of a position would be accepted. For sampled answers the
probability of acceptance is also given: the target's probability of the draft's token, as long as
the tokens before it matched.

Sampled drafts (``probabilistic``) have only a probability of acceptance along an answer. An
accepted draft is a token of the answer. Of all answers with token x in this place, the share in
which x was an accepted draft is min(p, q) / p, with p the target's and q the draft's probability of
x. So the draft is fed the answer's tokens, and that share is given by depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eaglegate.lab.training.checkpoint import load_draft
from eaglegate.lab.training.eagle import Draft, known_tokens, own_tokens, unroll
from eaglegate.lab.training.target import TargetModel


@dataclass(frozen=True)
class Trajectory:
    """Prompt and answer. ``temperature`` 0 is greedy; probabilities are those the engine samples
    from.
    """

    prompt: Sequence[int]
    answer: Sequence[int]
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    drafts_sampled: bool = False
    """True if the engine samples its drafts, from the draft's probabilities at the same
    temperature.
    """


@dataclass(frozen=True)
class DraftHead:
    """Draft, and its map to the target's token ids if it has a vocabulary of its own."""

    name: str
    draft: Draft
    target_ids: Tensor | None

    @staticmethod
    def load(name: str, path: Path, target: TargetModel) -> DraftHead:
        return DraftHead(name, *load_draft(path, target.draft_shape("eagle3")))


@dataclass(frozen=True)
class UnrolledAnswer:
    """One draft along one answer. Position i speculates after the answer's token i."""

    matches: list[int]
    """Number of consecutive drafts that are the answer's tokens, by position."""
    chances: list[list[float]]
    """Probability by position and depth that the target emits the draft's token, as long as the
    drafts before it matched; 1 or 0 for a greedy answer. For sampled drafts: the probability that
    the draft is accepted if those before it were; their ``matches`` are empty.
    """


@torch.no_grad()
def unroll_answers(
    target: TargetModel, drafts: Sequence[DraftHead], trajectory: Trajectory, depths: int
) -> Iterator[tuple[str, UnrolledAnswer]]:
    """Unroll an answer with each draft. An answer of fewer than two tokens yields nothing."""
    count = len(trajectory.answer) - 1
    if count < 1:
        return
    ids = torch.tensor([[*trajectory.prompt, *trajectory.answer]])
    layers = tuple(sorted({layer for head in drafts for layer in head.draft.shape.layers_read}))
    states, last_states = target.states(ids, layers)
    by_layer = dict(zip(layers, states, strict=True))
    distributions = (
        _find_sampling(target, last_states, trajectory) if trajectory.temperature > 0 else None
    )
    for head in drafts:
        layer_states = [by_layer[layer] for layer in head.draft.shape.layers_read]
        yield head.name, _unroll(target, head, layer_states, ids, trajectory, distributions, depths)


def _find_sampling(target: TargetModel, last_states: Tensor, trajectory: Trajectory) -> Tensor:
    """Return the distributions after the first token: [answer positions, vocabulary]."""
    rows = last_states[:, len(trajectory.prompt) :]
    logits = target.logits(rows)[0].float() / trajectory.temperature
    if trajectory.min_p > 0:
        chances = logits.softmax(-1)
        logits[chances < trajectory.min_p * chances.amax(-1, keepdim=True)] = -torch.inf
    if 0 < trajectory.top_k < logits.shape[-1]:
        threshold = logits.topk(trajectory.top_k).values[:, -1:]
        logits[logits < threshold] = -torch.inf
    if trajectory.top_p < 1:
        probabilities, token_order = logits.softmax(-1).sort(-1, descending=True)
        is_beyond = probabilities.cumsum(-1) - probabilities >= trajectory.top_p
        logits[torch.zeros_like(is_beyond).scatter(-1, token_order, is_beyond)] = -torch.inf
    return logits.softmax(-1)


def _unroll(
    target: TargetModel,
    head: DraftHead,
    states: list[Tensor],
    ids: Tensor,
    trajectory: Trajectory,
    distributions: Tensor | None,
    depths: int,
) -> UnrolledAnswer:
    prompt, count, length = len(trajectory.prompt), len(trajectory.answer) - 1, ids.shape[1]
    rows = torch.arange(prompt - 1, prompt - 1 + count)[None]
    samples_drafts = distributions is not None and trajectory.drafts_sampled
    next_tokens = (
        known_tokens(ids, rows) if samples_drafts else own_tokens(head.draft, head.target_ids)
    )
    rope = target.rope(head.draft.shape)
    outputs = unroll(head.draft, target.embed, states, ids, rows, rope, depths, next_tokens)
    survivors, matches = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.long)
    chances = torch.zeros(count, depths)
    for depth, output in enumerate(outputs):
        logits = head.draft.lm_head(output)[0]
        positions = rows[0] + 2 + depth
        tokens = ids[0, positions.clamp(max=length - 1)]
        targets = None
        if distributions is not None:
            targets = distributions[(positions - prompt - 1).clamp(max=len(distributions) - 1)]
        if samples_drafts:
            assert targets is not None
            proposal = (logits.float() / trajectory.temperature).softmax(-1)
            share = _share_accepted(
                _to_target_ids(proposal, head.target_ids, targets), targets, tokens
            )
            chances[:, depth] = torch.where(positions < length, share, 0.0)
            continue
        guess = logits.argmax(-1)
        guess = guess if head.target_ids is None else head.target_ids[guess]
        is_inside = survivors & (positions < length)
        survivors = is_inside & (guess == tokens)
        matches += survivors
        if targets is None:
            chances[:, depth] = survivors.float()
        else:
            target_chances = targets.gather(-1, guess[:, None])[:, 0]
            chances[:, depth] = torch.where(is_inside, target_chances, 0.0)
    return UnrolledAnswer([] if samples_drafts else matches.tolist(), chances.tolist())


def _share_accepted(proposal: Tensor, targets: Tensor, tokens: Tensor) -> Tensor:
    """Return min(p, q) / p of each token, with p the target's and q the draft's probability."""
    target_chances = targets.gather(-1, tokens[:, None]).clamp(min=1e-9)
    return (proposal.gather(-1, tokens[:, None]) / target_chances).clamp(max=1.0)[:, 0]


def _to_target_ids(chances: Tensor, target_ids: Tensor | None, targets: Tensor) -> Tensor:
    if target_ids is None:
        return chances
    return torch.zeros_like(targets).index_add_(1, target_ids, chances)
