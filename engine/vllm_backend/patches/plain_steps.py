"""A step that verifies nothing is prepared for, and sampled by, the rejection sampler, which costs
more than the plain one.

The rejection sampler would give every request of such a step its bonus token, which is the plain
sampler's: with the same draws of a seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = UNTIL = ""


def sample(original: Original, runner: GPUModelRunner, logits: Any, metadata: Any) -> Any:
    if metadata is not None and not runner.use_async_scheduling and metadata.max_spec_len == 0:
        metadata = None
    return original(runner, logits, metadata)


def calculate_metadata(
    original: Original, runner: GPUModelRunner, num_draft_tokens: Any, ends: Any
) -> SpecDecodeMetadata:
    """Return where the logits of a step's draft tokens are. ``ends`` are those of its requests, in
    the tokens of the step."""
    if num_draft_tokens.any():
        return original(runner, num_draft_tokens, ends)
    rows = np.arange(1 + len(num_draft_tokens), dtype=np.int32)
    count = torch.from_numpy(rows).to(runner.device, non_blocking=True)
    return SpecDecodeMetadata(
        draft_token_ids=runner.input_ids.gpu[:0],
        num_draft_tokens=[0] * len(num_draft_tokens),
        cu_num_draft_tokens=torch.zeros_like(count[1:]),
        cu_num_sampled_tokens=count[1:],
        target_logits_indices=count[:0],
        bonus_logits_indices=count[:-1],
        logits_indices=torch.from_numpy(ends - 1).to(runner.device, non_blocking=True),
    )


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "_sample", sample)
    wrap(GPUModelRunner, "_calc_spec_decode_metadata", calculate_metadata)
