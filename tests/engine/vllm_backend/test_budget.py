"""The next tokens that a reasoning budget demands, and the faults of vLLM's own state for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from eaglegate.engine.vllm_backend.patches.thinking_budgets import (
    ThinkingBudget,
    ThinkingBudgets,
    make_thinking_budgets,
)

START, PHRASE, END, VOCABULARY = [7, 8], [6, 9], [9], 12


def make_config(phrase: list[int]) -> Any:
    return SimpleNamespace(
        reasoning_start_token_ids=START,
        reasoning_end_token_ids=phrase,
        natural_reasoning_end_token_ids=END,
    )


def test_tokens_that_are_taken_back_count_no_more() -> None:
    made = ThinkingBudget(3, START, make_config(PHRASE))
    made.read([1, 2, 3])
    assert made.find_forced([]) == [6]
    made.read([1])
    assert made.find_forced([]) == [None]


def test_without_markers_there_are_no_budgets() -> None:
    unknown: Any = SimpleNamespace(
        reasoning_start_token_ids=None,
        reasoning_end_token_ids=None,
        natural_reasoning_end_token_ids=None,
    )
    assert make_thinking_budgets(lambda: None, None) is None
    assert make_thinking_budgets(lambda: None, unknown) is None


Holder = ThinkingBudgets | ThinkingBudgetStateHolder


def make_holder(own: bool) -> Holder:
    """A holder of ours or vLLM's, for eight rows and three drafts."""
    if own:
        return ThinkingBudgets(make_config(END))
    return ThinkingBudgetStateHolder(make_config(END), 8, 3, torch.device("cpu"), False)


def add(holder: Holder, *budgets: int | None) -> None:
    added = [
        (row, SamplingParams(thinking_token_budget=budget), START, [])
        for row, budget in enumerate(budgets)
    ]
    holder.sync_batch(BatchUpdate(len(budgets), [], added, []))


def find_rows(
    holder: Holder, outputs: list[list[int]], drafts: list[list[int]], bonus: bool = False
) -> list[int]:
    """The rows of a step with one row per request in which the end is forced."""
    holder.update_state(outputs, drafts)
    logits = torch.zeros(len(outputs), VOCABULARY)
    holder.apply_to_logits(logits, bonus, drafts)
    return torch.nonzero(logits[:, END[0]]).flatten().tolist()


OURS_OR_VLLMS = pytest.mark.parametrize(
    "own", [True, pytest.param(False, marks=pytest.mark.xfail(strict=True))]
)
"""Runs a test on our class and on vLLM's: once vLLM passes one of these, the whole class may go."""


@OURS_OR_VLLMS
def test_in_a_step_without_drafts_the_end_goes_to_its_own_row(own: bool) -> None:
    holder = make_holder(own)
    add(holder, None, 2, None)
    assert find_rows(holder, [[1, 2], [1, 2], [1, 2]], [[], [], []]) == [1]


@OURS_OR_VLLMS
def test_a_budget_does_not_pass_to_the_request_that_takes_the_row(own: bool) -> None:
    holder = make_holder(own)
    add(holder, 2, None)
    moved = [(1, 0, MoveDirectionality.UNIDIRECTIONAL)]
    holder.sync_batch(BatchUpdate(1, [], [], moved))
    assert find_rows(holder, [[1, 2, 3]], [[]]) == []


@OURS_OR_VLLMS
def test_a_prompt_in_chunks_does_not_use_the_end_up(own: bool) -> None:
    """The first step's token is thrown away: its prompt has not been read to the end."""
    holder = make_holder(own)
    add(holder, 0, None)
    for _ in range(2):
        assert find_rows(holder, [[], [1, 2]], [[], [3]], bonus=True) == [0]
