"""Sampling for requests with a seed, in both of vLLM's model runners.

vLLM's first runner draws numbers from a generator per request, once for each draft that it
verifies, so its text depends on the depth of every step. The second has noise keyed by position,
but verifies drafts by a ratio test with other numbers, so its text also depends on the drafts. Here
both take the sample of ``position_noise`` at every position and accept the drafts that equal it.
The position counts the whole sequence, prompt included. It stays the same when a request continues
on another engine with its tokens in the prompt.

Requests without a seed keep vLLM's samplers. A batch without seeds runs none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend import position_noise

REJECTED = -1
"""Placeholder for no token in the first runner's output."""


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

    def sample_ends(self, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Write the samples that follow each request's last token."""
        positions = self._ends[self._rows]
        tokens[self._rows] = position_noise.sample(logits[self._rows], self._seeds, positions).to(
            tokens.dtype
        )

    def sample_drafted(self, logits: torch.Tensor) -> torch.Tensor:
        """Return tokens in the places of drafts: samples, and the likeliest tokens for other
        requests."""
        if len(self._drafts) == len(logits):
            return position_noise.sample(logits, self._draft_seeds, self._positions)
        tokens = logits.argmax(-1)
        seeded_logits = logits[self._drafts]
        tokens[self._drafts] = position_noise.sample(
            seeded_logits, self._draft_seeds, self._positions
        )
        return tokens

    def merge(self, seeded_tokens: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return ``tokens`` with the rows of seeded requests replaced from ``seeded_tokens``."""
        return tokens.index_copy_(0, self._rows, seeded_tokens[self._rows])


@contextmanager
def key_by_position(runner: GPUModelRunner, metadata: SpecDecodeMetadata | None) -> Iterator[None]:
    """Replace the generators of seeded requests by positions while the first runner samples."""
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


def sample(original: Callable[..., Any], runner: GPUModelRunner, logits: Any, metadata: Any) -> Any:
    """Sample. Without drafts vLLM's plain sampler is enough. Rows with a seed use position-keyed
    noise."""
    if metadata is not None and not runner.use_async_scheduling and metadata.max_spec_len == 0:
        metadata = None
    with key_by_position(runner, metadata):
        return original(runner, logits, metadata)


def bookkeeping_sync(
    original: Callable[..., Any], runner: GPUModelRunner, *args: Any, **kwargs: Any
) -> Any:
    """Hide the generators, because rows of unfinished prompts drew no numbers that vLLM must take
    back."""
    batch = runner.input_batch
    generators, batch.generators = batch.generators, {}
    try:
        return original(runner, *args, **kwargs)
    finally:
        batch.generators = generators


def draw(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor | None]],
    sampler: TopKTopPSampler,
    logits: torch.Tensor,
    generators: Any,
    k: torch.Tensor | None,
    p: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Sample steps without drafts, and bonus tokens, in the first runner."""
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
    original: Callable[..., torch.Tensor],
    drafts: torch.Tensor,
    counts: list[int],
    max_drafts: int,
    ends: torch.Tensor,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    bonus: torch.Tensor,
    metadata: SamplingMetadata,
    synthetic_mode: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Replace the first runner's ``rejection_sample``; returns a row of tokens for each request."""
    rows = metadata.generators
    options["synthetic_mode"] = synthetic_mode
    arguments = drafts, counts, max_drafts, ends, draft_probs, logits, bonus
    if not isinstance(rows, SeededRows):
        return original(*arguments, metadata, **options)
    plain_metadata = replace(metadata, generators={})
    if synthetic_mode:
        return original(*arguments, plain_metadata, **options)
    tokens = accept_drafts(rows.sample_drafted(logits), drafts, ends, max_drafts, bonus)
    return (
        tokens
        if rows.is_complete
        else rows.merge(tokens, original(*arguments, plain_metadata, **options))
    )


def accept_drafts(
    samples: torch.Tensor,
    drafts: torch.Tensor,
    ends: torch.Tensor,
    max_drafts: int,
    bonus: torch.Tensor,
) -> torch.Tensor:
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


def verify_again(
    original: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    sampler: RejectionSampler,
    *arguments: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Replace the second runner's ``RejectionSampler._verify``, with other rows for seeded
    requests."""
    # Arguments of ``_verify`` (vllm/v1/worker/gpu/spec_decode/rejection_sampler.py). There is a row
    # of logits for every draft of every request and one for its bonus token: ``positions``,
    # ``owners`` and ``drafts`` have the shape (rows,), ``begins`` (requests + 1,), ``requests`` and
    # ``seed_flags`` (requests,), ``output_tokens`` (requests, K + 1), ``num_sampled`` (requests,).
    logits, output_tokens, num_sampled = original(sampler, *arguments)
    _, _, _, positions, begins, _, requests, owners, _, _, drafts = arguments
    states = sampler.sampler.sampling_states
    seed_flags = states.seeds_set[requests]
    # Synthetic acceptance (for benchmarks) and watermarks choose the tokens themselves.
    is_forced = sampler.synthetic_conditional_rates is not None or sampler.watermark_key is not None
    if is_forced or not seed_flags.any():
        return logits, output_tokens, num_sampled
    # Gumbel-max (Maddison et al., 2014, "A* sampling"): the token with the greatest logit plus
    # noise is a sample. The noise is that of a step without drafts at the same position, so the
    # text does not depend on drafts. The original's ratio test draws other numbers. ``logits``
    # already have the temperature.
    samples = gumbel_sample(
        logits,
        owners,
        states.temperature.gpu,
        states.seeds.gpu,
        positions,
        apply_temperature=False,
        is_drafting=False,
        use_fp64=sampler.sampler.use_fp64_gumbel,
    )
    # Rows of each request, in shape (requests, K + 1). Those beyond its own are clamped to any
    # valid row: ``counts`` keeps them from being accepted, and ``num_sampled`` from being read.
    columns = torch.arange(output_tokens.shape[1], device=output_tokens.device)
    rows = (begins[:-1].unsqueeze(1) + columns).clamp_(max=len(samples) - 1)
    # ``drafts`` holds the input token of each row. The draft that a row's sample is compared with
    # is the input of the next row.
    placed_drafts = drafts[(rows + 1).clamp_(max=len(samples) - 1)]
    tokens, counts = samples[rows], torch.diff(begins) - 1
    num_accepted = position_noise.count_accepted(tokens, placed_drafts, counts)
    is_seeded = async_tensor_h2d(seed_flags, output_tokens.device)
    output_tokens = torch.where(
        is_seeded.unsqueeze(1), tokens.to(output_tokens.dtype), output_tokens
    )
    # The sample after the last accepted draft counts as well: a correction, or the bonus token.
    num_kept = (num_accepted + 1).to(num_sampled.dtype)
    return logits, output_tokens, torch.where(is_seeded, num_kept, num_sampled)


def _get_seed(generator: torch.Generator) -> int:
    """Return the seed as the client gave it, between -2**63 and 2**63."""
    seed = int(generator.initial_seed())
    return seed - (1 << 64) if seed >> 63 else seed
