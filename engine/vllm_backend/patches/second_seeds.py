"""The text of a request with a seed depends on its drafts.

vLLM samples with noise keyed by position, but verifies drafts by a ratio test with other numbers.
Here drafts that equal the sample at their position are accepted. Requests without a seed keep
vLLM's sampler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from eaglegate.engine.vllm_backend import position_noise
from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = "22987"
UNTIL = ""


def verify(
    original: Original, sampler: RejectionSampler, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace ``RejectionSampler._verify``, with other rows for seeded
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


def patch(wrap: Wrap) -> None:
    wrap(RejectionSampler, "_verify", verify)
