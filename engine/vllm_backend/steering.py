"""Sampling fields that vLLM's first model runner does not apply correctly with a draft.

* ``logit_bias`` and ``min_p``: with a draft vLLM loads neither of their processors, and its
  rejection sampler would not apply them to the rows that verify drafts. Here both are loaded. The
  sampler applies them to rows without a draft and to bonus tokens as usual, and ``apply_to_drafts``
  applies them to the rows of drafts.
* ``thinking_token_budget``: ``ThinkingBudgets`` replaces vLLM's state per row. That state stayed
  behind when another request moved to the row, wrote every request's end of reasoning to the first
  row in steps without drafts, and lost a pending end of reasoning when a prompt came in chunks.
* ``min_tokens``: vLLM bans the end from the bonus token even if the drafts before it reach the
  minimum, and in asynchronous scheduling allows it too early (``MinTokens``).

With these repairs such requests can speculate. Their greedy text equals that of an engine without a
draft, and their sampled text has the same distribution. The second model runner (GPU) applies all
these fields to every row itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.config.reasoning import ReasoningConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import (
    BUILTIN_LOGITS_PROCESSORS,
    BatchUpdate,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_input_batch import InputBatch


def build_logitsprocs(
    original: Callable[..., LogitsProcessors],
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
    replacements = {MinTokensLogitsProcessor: MinTokens}
    return LogitsProcessors(
        replacements.get(kind, kind)(vllm_config, device, is_pin_memory)
        for kind in BUILTIN_LOGITS_PROCESSORS
    )


def apply_to_drafts(
    original: Callable[..., torch.Tensor],
    sampler: RejectionSampler,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
    metadata: SpecDecodeMetadata,
) -> torch.Tensor:
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


def add_biases(
    logits: torch.Tensor, biases: dict[int, dict[int, float]], counts: Sequence[int]
) -> None:
    """Add biases. ``counts[i]`` consecutive rows of ``logits`` belong to request ``i``."""
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


class MinTokens(MinTokensLogitsProcessor):  # type: ignore[misc]
    """vLLM's processor, but tokens are counted when a row is sampled, with the drafts before a
    bonus token.

    vLLM counts when it plans the step, and forgets a request that has enough. With asynchronous
    scheduling that count assumes every draft to be accepted.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drafts: Sequence[Sequence[int]] = ()
        """Drafts of each row, while bonus tokens are sampled."""
        self._banned_rows: tuple[int, ...] | None = None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self.min_toks, batch_update, self.add_request):
            self._banned_rows = None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
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

    def _make_slice(self, places: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, tokens = [row for row, _ in places], [token for _, token in places]
        return self._device_tensor(rows, torch.int32), self._device_tensor(tokens, torch.int32)


def find_min_tokens(processors: LogitsProcessors) -> MinTokens | None:
    matches = (
        processor
        for processor in processors.non_argmax_invariant
        if isinstance(processor, MinTokens)
    )
    return next(matches, None)


def apply_to_samples(
    original: Callable[..., torch.Tensor],
    sampler: Sampler,
    logits: torch.Tensor,
    sampling_metadata: SamplingMetadata,
    predict_bonus_token: bool,
) -> torch.Tensor:
    """Apply processors. For ``min_tokens`` the drafts before a request's bonus token count as
    well."""
    minimum = find_min_tokens(sampling_metadata.logitsprocs)
    if minimum is None:
        return original(sampler, logits, sampling_metadata, predict_bonus_token)
    minimum.drafts = sampling_metadata.spec_token_ids or () if predict_bonus_token else ()
    return original(sampler, logits, sampling_metadata, predict_bonus_token)


def make_sampling_metadata(
    original: Callable[..., SamplingMetadata], batch: InputBatch
) -> SamplingMetadata:
    """Request sampled tokens at once if they are needed, because with asynchronous scheduling vLLM
    learns them late otherwise."""
    minimum = find_min_tokens(batch.logitsprocs)
    if minimum is not None:
        batch.logitsprocs_need_output_token_ids = bool(minimum.min_toks)
    return original(batch)


class ReasoningSpan:
    """The reasoning in a growing sequence of tokens."""

    def __init__(self, start: list[int], end: list[int], begin_at: int = 0) -> None:
        """Start outside of reasoning. Tokens before ``begin_at`` are not read."""
        self._start, self._end = start, end
        self._num_read = begin_at
        self._begin: int | None = None

    @property
    def length(self) -> int | None:
        """Number of tokens since the reasoning began; None outside of reasoning."""
        return None if self._begin is None else self._num_read - self._begin

    def read(self, tokens: Sequence[int]) -> None:
        for index in range(self._num_read + 1, len(tokens) + 1):
            if self._ends_with(tokens, index, self._start):
                self._begin = index
            elif self._begin is not None and self._ends_with(tokens, index, self._end):
                self._begin = None
        self._num_read = len(tokens)

    @staticmethod
    def _ends_with(tokens: Sequence[int], end: int, marker: list[int]) -> bool:
        return (
            tokens[end - 1] == marker[-1]
            and list(tokens[max(0, end - len(marker)) : end]) == marker
        )


class ThinkingBudget:
    """The tokens that one request's thinking budget forces, which depend only on its tokens so
    far."""

    def __init__(self, budget: int, prompt: Sequence[int], config: ReasoningConfig) -> None:
        self._budget, self._prompt = budget, prompt
        self._markers = (config.reasoning_start_token_ids, config.natural_reasoning_end_token_ids)
        self._phrase: list[int] = list(config.reasoning_end_token_ids or ())
        self._restart()

    def _restart(self) -> None:
        start, end = self._markers
        self._span = ReasoningSpan(list(start or ()), list(end or ()))
        self._tokens = list(self._prompt)
        self._span.read(self._tokens)

    def read(self, output: Sequence[int]) -> None:
        """Read all tokens of the answer so far. vLLM takes some back when a transfer of KV
        fails."""
        num_known = len(self._tokens) - len(self._prompt)
        if len(output) < num_known:
            self._restart()
            num_known = 0
        self._tokens += output[num_known:]
        self._span.read(self._tokens)

    def find_forced(self, drafts: Iterable[int]) -> list[int | None]:
        """Return the token that must come next, after each number of drafts from none to all."""
        span, length = copy(self._span), len(self._tokens)
        forced_tokens = [self._get_forced(span)]
        for draft in drafts:
            self._tokens.append(draft)
            span.read(self._tokens)
            forced_tokens.append(self._get_forced(span))
        del self._tokens[length:]
        return forced_tokens

    def _get_forced(self, span: ReasoningSpan) -> int | None:
        """Return the token that must come next; None if any may. A partial end phrase is
        continued."""
        if span.length is None or span.length < self._budget:
            return None
        lengths = (
            length for length in range(len(self._phrase) - 1, 0, -1) if self._is_last(length)
        )
        return self._phrase[next(lengths, 0)]

    def _is_last(self, count: int) -> bool:
        return self._tokens[-count:] == self._phrase[:count]


class ThinkingBudgets:
    """The budgets of a batch by row, in place of vLLM's ``ThinkingBudgetStateHolder``."""

    def __init__(self, config: ReasoningConfig) -> None:
        self._config = config
        self._rows: dict[int, ThinkingBudget] = {}

    def has_tracked_requests(self) -> bool:
        return bool(self._rows)

    def sync_batch(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._make)

    def _make(
        self, params: SamplingParams, prompt: list[int] | None, _: list[int]
    ) -> ThinkingBudget | None:
        budget = params.thinking_token_budget
        if budget is None or budget < 0:
            return None
        return ThinkingBudget(budget, prompt or (), self._config)

    def update_state(self, output_token_ids: list[list[int]], *_: Any, **__: Any) -> None:
        for row, budget in self._rows.items():
            budget.read(output_token_ids[row])

    def apply_to_logits(
        self,
        logits: torch.Tensor,
        predict_bonus_token: bool,
        spec_token_ids: list[list[int]] | None,
    ) -> torch.Tensor:
        """Force the tokens that budgets demand. ``logits`` has a row per request, in a step without
        drafts or for bonus tokens, or else a row per draft."""
        drafts = spec_token_ids or []
        begins = (0, *accumulate(len(row_drafts) for row_drafts in drafts))
        per_request = predict_bonus_token or not begins[-1]
        places: list[tuple[int, int]] = []
        for row, budget in self._rows.items() if len(logits) else ():
            forced_tokens = budget.find_forced(drafts[row] if row < len(drafts) else ())
            rows = (
                [(row, forced_tokens[-1])]
                if per_request
                else enumerate(forced_tokens[:-1], begins[row])
            )
            places += [(target_row, token) for target_row, token in rows if token is not None]
        if places:
            indices = torch.tensor(places, device=logits.device).unbind(1)
            logits.index_put_(indices, torch.full((len(places),), 1e9, device=logits.device))
        return logits


def make_thinking_budgets(
    _: Callable[..., Any], config: ReasoningConfig | None, *__: Any
) -> ThinkingBudgets | None:
    """Return the budgets; None if the markers of reasoning are unknown. The API then refuses
    budgets."""
    markers = config and config.reasoning_start_token_ids and config.natural_reasoning_end_token_ids
    return (
        ThinkingBudgets(config) if config and markers and config.reasoning_end_token_ids else None
    )
