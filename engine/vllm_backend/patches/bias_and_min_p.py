"""With a draft vLLM loads the processors of neither ``logit_bias`` nor ``min_p``, and its rejection
sampler would not apply them to the rows that verify drafts.

Here both are loaded. The sampler applies them to rows without a draft and to bonus tokens as usual,
and ``apply_to_drafts`` to the rows of drafts. ``refused_fields`` makes vLLM accept the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker import gpu_model_runner

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = "42744"
UNTIL = ""


def build_logitsprocs(
    original: Original,
    vllm_config: VllmConfig,
    device: torch.device,
    is_pin_memory: bool,
    is_pooling_model: bool,
    custom_logitsprocs: Sequence[Any] = (),
) -> LogitsProcessors:
    """Build all of vLLM's own processors, with or without a draft. With a draft vLLM refuses custom
    ones."""
    if vllm_config.speculative_config is None or is_pooling_model or custom_logitsprocs:
        return original(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
    return LogitsProcessors(
        kind(vllm_config, device, is_pin_memory) for kind in BUILTIN_LOGITS_PROCESSORS
    )


def apply_to_drafts(
    original: Original,
    sampler: RejectionSampler,
    logits: Tensor,
    sampling_metadata: SamplingMetadata,
    metadata: SpecDecodeMetadata,
) -> Tensor:
    """Apply biases and ``min_p`` in the order of the plain path: biases before penalties, ``min_p``
    last."""
    counts = metadata.num_draft_tokens
    for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
        if isinstance(processor, LogitBiasLogitsProcessor) and processor.biases:
            add_biases(logits, processor.biases, counts)
    logits = original(sampler, logits, sampling_metadata, metadata)
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, MinPLogitsProcessor) and processor.min_p_count:
            mask_min_p(logits, processor.min_p, sampling_metadata.temperature, counts)
    return logits


def add_biases(logits: Tensor, biases: dict[int, dict[int, float]], counts: Sequence[int]) -> None:
    """Add biases. ``counts[i]`` consecutive rows of ``logits`` belong to request ``i``."""
    begins = (0, *accumulate(counts))
    for request, bias in biases.items():
        rows = slice(begins[request], begins[request + 1])
        tokens = torch.tensor(list(bias), device=logits.device)
        logits[rows, tokens] += torch.tensor(list(bias.values()), device=logits.device)


def mask_min_p(
    logits: Tensor, min_p: Tensor, temperature: Tensor | None, counts: Sequence[int]
) -> None:
    """Mask tokens with p < min_p * max p, for logits not yet divided by the temperature T.

    With p proportional to exp(logit / T), that is logit < max logit + T * ln(min_p). At T = 0
    nothing is masked. ``min_p`` has one row per request, ``temperature`` one value.
    """
    if temperature is None:
        return
    margin = torch.where(min_p[:, 0] > 0, temperature * min_p[:, 0].log(), -torch.inf)
    repeats = torch.tensor(counts, device=logits.device)
    margins = margin.repeat_interleave(repeats, output_size=len(logits)).unsqueeze(1)
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + margins, -torch.inf)


def patch(wrap: Wrap) -> None:
    wrap(gpu_model_runner, "build_logitsprocs", build_logitsprocs)
    wrap(RejectionSampler, "apply_logits_processors", apply_to_drafts)
