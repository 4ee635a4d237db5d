"""``logit_bias`` and ``min_p`` beside a draft, in vLLM's first model runner.

vLLM loads neither of their processors when there is a draft, and its rejection sampler would not
apply them to the rows that verify drafts. Here both are loaded; the sampler applies them to the
rows without a draft and to bonus tokens as ever, ``apply_to_drafts`` to the rows of drafts. So a
request with them speculates: greedy text is that of an engine without a draft, sampled text comes
from the same distribution. The second model runner (GPU) applies both to every row itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from engine.vllm_backend.contract import WORKER


class AllowSteering:
    """``vllm serve --middleware``: its API process takes both fields where our worker runs.

    Requests pass through; what matters is that the API process makes one.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        validate = InputProcessor._validate_params

        def validate_params(processor: InputProcessor, *args: Any, **kwargs: Any) -> Any:
            allow(processor)
            return validate(processor, *args, **kwargs)

        InputProcessor._validate_params = validate_params

    async def __call__(self, *asgi: Any) -> None:
        await self._app(*asgi)


def allow(processor: InputProcessor) -> None:
    """vLLM refuses both fields where it knows of a draft, and else only the replay of traces."""
    if processor.vllm_config.parallel_config.worker_extension_cls == WORKER:
        processor.speculative_config = None


def build_logitsprocs(
    original: Callable[..., LogitsProcessors],
    vllm_config: VllmConfig,
    device: torch.device,
    is_pin_memory: bool,
    is_pooling_model: bool,
    custom_logitsprocs: Sequence[Any] = (),
) -> LogitsProcessors:
    """All of vLLM's own, with a draft as without one. Custom ones beside a draft vLLM refuses."""
    if vllm_config.speculative_config is None or is_pooling_model or custom_logitsprocs:
        return original(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
    return LogitsProcessors(
        kind(vllm_config, device, is_pin_memory) for kind in BUILTIN_LOGITS_PROCESSORS
    )


def apply_to_drafts(
    original: Callable[..., torch.Tensor],
    sampler: RejectionSampler,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
    metadata: SpecDecodeMetadata,
) -> torch.Tensor:
    """In the order of the plain path: biases before penalties, ``min_p`` after everything."""
    counts = metadata.num_draft_tokens
    for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
        if isinstance(processor, LogitBiasLogitsProcessor) and processor.biases:
            add_biases(logits, processor.biases, counts)
    logits = original(sampler, logits, sampling_metadata, metadata)
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, MinPLogitsProcessor) and processor.min_p_count:
            mask_min_p(logits, processor.min_p, sampling_metadata.temperature, counts)
    return logits


def add_biases(
    logits: torch.Tensor, biases: dict[int, dict[int, float]], counts: Sequence[int]
) -> None:
    """``counts[i]`` rows of ``logits`` belong to request ``i``, in order."""
    begins = (0, *accumulate(counts))
    for request, bias in biases.items():
        rows = slice(begins[request], begins[request + 1])
        tokens = torch.tensor(list(bias), device=logits.device)
        logits[rows, tokens] += torch.tensor(list(bias.values()), device=logits.device)


def mask_min_p(
    logits: torch.Tensor,
    min_p: torch.Tensor,
    temperature: torch.Tensor | None,
    counts: Sequence[int],
) -> None:
    """p < min_p * max p, for logits that the temperature T has yet to divide.

    With p proportional to exp(logit / T): logit < max logit + T * ln(min_p). At T = 0 there is
    nothing to mask. ``min_p`` has one row per request, ``temperature`` one value.
    """
    if temperature is None:
        return
    margin = torch.where(min_p[:, 0] > 0, temperature * min_p[:, 0].log(), -torch.inf)
    repeats = torch.tensor(counts, device=logits.device)
    margins = margin.repeat_interleave(repeats, output_size=len(logits)).unsqueeze(1)
    logits.masked_fill_(logits < logits.amax(-1, keepdim=True) + margins, -torch.inf)
