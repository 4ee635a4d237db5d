"""The text of a request with a seed depends on the depth of every step.

vLLM draws numbers from a generator per request, once for each draft that it verifies. Here the
sample at every position is that of ``position_noise``, and drafts that equal it are accepted.
Positions count the prompt, so they stay when a request continues on another engine with its tokens
in the prompt. Requests without a seed keep vLLM's samplers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend import position_noise
from eaglegate.engine.vllm_backend.patches import Original, Wrap

REJECTED = -1
"""Placeholder for no token in the runner's output."""
THREAD = "22987"
UNTIL = ""


class SeededRows:
    """The seeded requests of one step, in place of a SamplingMetadata's generators."""

    def __init__(self, runner: GPUModelRunner, metadata: SpecDecodeMetadata | None) -> None:
        batch = runner.input_batch
        device = runner.device
        rows = sorted(batch.generators)
        seeds = np.array([_get_seed(batch.generators[row]) for row in rows], dtype=np.int64)
        self.is_complete = len(rows) == len(batch.random_reqs)
        """True if no other request of the step samples."""
        self._rows = async_tensor_h2d(rows, device, torch.int64)
        self._seeds = async_tensor_h2d(seeds, device)
        if metadata is None:
            ends = runner.query_start_loc.gpu[1 : batch.num_reqs + 1] - 1
            self._ends = runner.positions[ends]
            return
        positions = runner.positions[metadata.logits_indices]
        self._ends = positions[metadata.bonus_logits_indices]
        counts = metadata.num_draft_tokens
        owners = np.repeat(np.arange(len(counts)), counts)
        drafts = np.flatnonzero(np.isin(owners, rows))
        self._drafts = async_tensor_h2d(drafts, device)
        self._draft_seeds = async_tensor_h2d(seeds[np.searchsorted(rows, owners[drafts])], device)
        self._positions = positions[metadata.target_logits_indices][self._drafts]

    def sample_ends(self, logits: Tensor, tokens: Tensor) -> None:
        """Write the samples that follow each request's last token."""
        rows, positions = self._rows, self._ends[self._rows]
        samples = position_noise.sample(logits[rows], self._seeds, positions)
        tokens[rows] = samples.to(tokens.dtype)

    def sample_drafted(self, logits: Tensor) -> Tensor:
        """Return tokens in the places of drafts: samples, and the likeliest tokens for other
        requests."""
        is_complete = len(self._drafts) == len(logits)
        seeded_logits = logits if is_complete else logits[self._drafts]
        samples = position_noise.sample(seeded_logits, self._draft_seeds, self._positions)
        return samples if is_complete else logits.argmax(-1).index_copy_(0, self._drafts, samples)

    def merge(self, seeded_tokens: Tensor, tokens: Tensor) -> Tensor:
        """Return ``tokens`` with the rows of seeded requests replaced from ``seeded_tokens``."""
        return tokens.index_copy_(0, self._rows, seeded_tokens[self._rows])


@contextmanager
def key_by_position(runner: GPUModelRunner, metadata: SpecDecodeMetadata | None) -> Iterator[None]:
    """Replace the generators of seeded requests by positions while the runner samples."""
    batch = runner.input_batch
    if not batch.generators:
        yield
        return
    sampling_metadata = batch.sampling_metadata
    batch.sampling_metadata = replace(sampling_metadata, generators=SeededRows(runner, metadata))
    try:
        yield
    finally:
        batch.sampling_metadata = sampling_metadata


def sample(original: Original, runner: GPUModelRunner, logits: Any, metadata: Any) -> Any:
    with key_by_position(runner, metadata):
        return original(runner, logits, metadata)


def bookkeeping_sync(original: Original, runner: GPUModelRunner, *args: Any, **kwargs: Any) -> Any:
    """Hide the generators, because rows of unfinished prompts drew no numbers that vLLM must take
    back."""
    batch = runner.input_batch
    generators, batch.generators = batch.generators, {}
    try:
        return original(runner, *args, **kwargs)
    finally:
        batch.generators = generators


def draw(
    original: Original,
    sampler: TopKTopPSampler,
    logits: Tensor,
    generators: Any,
    k: Tensor | None,
    p: Tensor | None,
) -> Any:
    """Sample steps without drafts, and bonus tokens."""
    if not isinstance(generators, SeededRows):
        return original(sampler, logits, generators, k, p)
    logits = apply_top_k_top_p(logits, k, p)
    if generators.is_complete and sampler.logprobs_mode not in PROCESSED_LOGPROBS_MODES:
        tokens, processed_logits = logits.new_zeros(len(logits), dtype=torch.int64), None
    else:
        tokens, processed_logits = original(sampler, logits, {}, None, None)
    generators.sample_ends(logits, tokens)
    return tokens, processed_logits


def verify(
    original: Original,
    drafts: Tensor,
    counts: list[int],
    max_drafts: int,
    ends: Tensor,
    draft_probs: Tensor | None,
    logits: Tensor,
    bonus: Tensor,
    metadata: SamplingMetadata,
    synthetic_mode: bool = False,
    **options: Any,
) -> Tensor:
    """Replace ``rejection_sample``; returns a row of tokens for each request."""
    rows = metadata.generators
    options["synthetic_mode"] = synthetic_mode
    arguments = drafts, counts, max_drafts, ends, draft_probs, logits, bonus
    if not isinstance(rows, SeededRows):
        return original(*arguments, metadata, **options)
    plain_metadata = replace(metadata, generators={})
    if synthetic_mode:
        return original(*arguments, plain_metadata, **options)
    tokens = accept_drafts(rows.sample_drafted(logits), drafts, ends, max_drafts, bonus)
    if rows.is_complete:
        return tokens
    return rows.merge(tokens, original(*arguments, plain_metadata, **options))


def accept_drafts(
    samples: Tensor, drafts: Tensor, ends: Tensor, max_drafts: int, bonus: Tensor
) -> Tensor:
    """Return each request's samples up to the first that differs from its draft, then its bonus
    token."""
    if not max_drafts:
        return bonus.to(torch.int32)
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    columns = torch.arange(max_drafts + 1, device=ends.device)
    places = ((ends - counts).unsqueeze(1) + columns).clamp_(max=max(0, len(samples) - 1))
    tokens, placed_drafts = samples[places].to(torch.int32), drafts[places]
    num_accepted = position_noise.count_accepted(tokens, placed_drafts, counts).unsqueeze(1)
    tokens = torch.where(columns == counts.unsqueeze(1), bonus.to(torch.int32), tokens)
    return tokens.masked_fill_(columns > num_accepted, REJECTED)


def _get_seed(generator: torch.Generator) -> int:
    """Return the seed as the client gave it, between -2**63 and 2**63."""
    seed = int(generator.initial_seed())
    return seed - (1 << 64) if seed >> 63 else seed


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "_sample", sample)
    wrap(GPUModelRunner, "_bookkeeping_sync", bookkeeping_sync)
    wrap(TopKTopPSampler, "__call__", draw)
    wrap(rejection_sampler, "rejection_sample", verify)
