"""The end is banned from a bonus token even if the drafts before it reach ``min_tokens``, and is
allowed too early in asynchronous scheduling.

It counts when it plans the step, and forgets a request that has enough. With asynchronous
scheduling that count assumes every draft to be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MinTokensLogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_input_batch import InputBatch

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = UNTIL = ""


def build_logitsprocs(original: Original, vllm_config: VllmConfig, *args: Any) -> LogitsProcessors:
    processors = original(vllm_config, *args)
    if vllm_config.speculative_config is None:
        return processors
    device, is_pin_memory, *_ = args
    return LogitsProcessors(
        MinTokens(vllm_config, device, is_pin_memory)
        if type(processor) is MinTokensLogitsProcessor
        else processor
        for processor in processors.all
    )


class MinTokens(MinTokensLogitsProcessor):  # type: ignore[misc]
    """vLLM's processor, but tokens are counted when a row is sampled, with the drafts before a
    bonus token."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drafts: Sequence[Sequence[int]] = ()
        """Drafts of each row, while bonus tokens are sampled."""
        self._banned_rows: tuple[int, ...] | None = None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self.min_toks, batch_update, self.add_request):
            self._banned_rows = None

    def apply(self, logits: Tensor) -> Tensor:
        rows = tuple(row for row in self.min_toks if self._count_missing(row) > 0)
        if rows != self._banned_rows:
            self._ban_stops(rows)
        return super().apply(logits) if rows else logits

    def _count_missing(self, row: int) -> int:
        minimum, output, *_ = self.min_toks[row]
        drafts = self.drafts[row] if self.drafts else ()
        return int(minimum - len(output) - len(drafts))

    def _ban_stops(self, rows: tuple[int, ...]) -> None:
        stops = [(row, token) for row in rows for token in self.min_toks[row][2]]
        structured_stops = [(row, token) for row, token in stops if self.min_toks[row][3]]
        self.logits_slice = self._make_slice(stops)
        self.restore_logits_slice = self._make_slice(structured_stops)
        self._banned_rows = rows

    def _make_slice(self, places: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        rows, tokens = [row for row, _ in places], [token for _, token in places]
        return self._device_tensor(rows, torch.int32), self._device_tensor(tokens, torch.int32)


def find_min_tokens(processors: LogitsProcessors) -> MinTokens | None:
    kinds = {type(processor): processor for processor in processors.non_argmax_invariant}
    return kinds.get(MinTokens)


def apply_to_samples(
    original: Original,
    sampler: Sampler,
    logits: Tensor,
    sampling_metadata: SamplingMetadata,
    predict_bonus_token: bool,
) -> Tensor:
    """Apply processors. For ``min_tokens`` the drafts before a request's bonus token count as
    well."""
    minimum = find_min_tokens(sampling_metadata.logitsprocs)
    if minimum is not None:
        minimum.drafts = sampling_metadata.spec_token_ids or () if predict_bonus_token else ()
    return original(sampler, logits, sampling_metadata, predict_bonus_token)


def make_sampling_metadata(original: Original, batch: InputBatch) -> SamplingMetadata:
    """Request sampled tokens at once if they are needed, because with asynchronous scheduling vLLM
    learns them late otherwise."""
    minimum = find_min_tokens(batch.logitsprocs)
    if minimum is not None:
        batch.logitsprocs_need_output_token_ids = bool(minimum.min_toks)
    return original(batch)


def patch(wrap: Wrap) -> None:
    wrap(gpu_model_runner, "build_logitsprocs", build_logitsprocs)
    wrap(Sampler, "apply_logits_processors", apply_to_samples)
    wrap(InputBatch, "_make_sampling_metadata", make_sampling_metadata)
