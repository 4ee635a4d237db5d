"""vLLM keeps thinking budgets per row, which changes the text of other requests.

The state of a row stayed behind when another request moved to it, wrote every request's end of
reasoning to the first row in steps without drafts, and lost a pending end of reasoning when a
prompt came in chunks. Here a budget depends only on its request's tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from vllm.config.reasoning import ReasoningConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker import gpu_input_batch

from eaglegate.engine.vllm_backend.patches import Original, Wrap
from eaglegate.engine.vllm_backend.reasoning_span import ReasoningSpan

THREAD = UNTIL = ""


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
        phrase, tokens = self._phrase, self._tokens
        lengths = range(len(phrase) - 1, 0, -1)
        partial_lengths = (length for length in lengths if tokens[-length:] == phrase[:length])
        return phrase[next(partial_lengths, 0)]


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
        self, logits: Tensor, predict_bonus_token: bool, spec_token_ids: list[list[int]] | None
    ) -> Tensor:
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
    _: Original, config: ReasoningConfig | None, *__: Any
) -> ThinkingBudgets | None:
    """Return the budgets; None if the markers of reasoning are unknown. The API then refuses
    budgets."""
    markers = config and config.reasoning_start_token_ids and config.natural_reasoning_end_token_ids
    return (
        ThinkingBudgets(config) if config and markers and config.reasoning_end_token_ids else None
    )


def patch(wrap: Wrap) -> None:
    wrap(gpu_input_batch, "maybe_create_thinking_budget_state_holder", make_thinking_budgets)
