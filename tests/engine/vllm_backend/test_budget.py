"""When a request is near the end of its budget, and what the scheduler then does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams

from engine.types import UndraftedReason
from engine.vllm_backend.contract import SKIP
from engine.vllm_backend.scheduler import ReasoningSpan, ThinkingBudgetTracker
from tests.engine.vllm_backend.test_scheduler import MOST, Pretence

START, END = [7, 8], [9]


def watch(**changes: Any) -> ThinkingBudgetTracker:
    reasoning = SimpleNamespace(
        reasoning_start_token_ids=START,
        reasoning_end_token_ids=END,
        natural_reasoning_end_token_ids=END,
    )
    given: Any = SimpleNamespace(reasoning_config=reasoning, **changes)
    return ThinkingBudgetTracker(given, depth=1)


def request(budget: int | None, *tokens: int) -> Any:
    params = SamplingParams(thinking_token_budget=budget)
    return SimpleNamespace(request_id="r", sampling_params=params, all_token_ids=list(tokens))


def read(*parts: list[int]) -> ReasoningSpan:
    thought = ReasoningSpan(START, END)
    tokens: list[int] = []
    for part in parts:
        tokens += part
        thought.read(tokens)
    return thought


@pytest.mark.parametrize(
    ("parts", "length", "ended"),
    [
        ([[1, 2]], 0, False),
        ([[1, 7, 8, 5, 5]], 2, False),
        ([[1, 7], [8, 5], [5]], 2, False),
        ([[7, 8, 5], [9, 1]], 0, True),
        ([[7, 8, 5, 9, 7, 8, 4]], 1, False),
        ([[9, 7, 5, 8]], 0, False),
    ],
)
def test_the_length_of_a_thought(parts: list[list[int]], length: int, ended: bool) -> None:
    assert (read(*parts).length, read(*parts).ended) == (length, ended)


def test_near_is_two_steps_ahead_until_the_thought_has_ended() -> None:
    margin = 2 * 2 + len(START) + len(END)
    thinking = [7, 8, *[5] * 10]
    assert not watch().is_near_end(request(10 + margin + 1, *thinking))
    assert watch().is_near_end(request(10 + margin, *thinking))
    assert watch().is_near_end(request(0, *thinking))
    assert not watch().is_near_end(request(0, *thinking, 9, 4))


def test_without_a_budget_or_markers_nothing_is_near() -> None:
    assert not watch().is_near_end(request(None, 7, 8, 5))
    nothing: Any = SimpleNamespace(reasoning_config=None)
    assert not ThinkingBudgetTracker(nothing, depth=1).is_near_end(request(0, 7, 8, 5))


def test_ended_requests_are_forgotten() -> None:
    watching = watch()
    watching.is_near_end(request(3, 7, 8))
    watching.forget_others({})
    assert watching._thoughts == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_near_its_budget_a_request_drafts_nothing(asynchronous: bool) -> None:
    world = Pretence(asynchronous)
    (start,) = world.scheduler._budgets._start
    near, far = world.add("near", prompt=[1, start]), world.add("far", prompt=[1, start])
    near.sampling_params.thinking_token_budget = 2
    far.sampling_params.thinking_token_budget = 200
    plans = [world.step() for _ in range(6)]
    world.run()
    assert {step.drafted for step in world.steps["near"]} == {0}
    assert {step.undrafted for step in world.steps["near"]} == {UndraftedReason.REFUSED}
    assert MOST in {step.drafted for step in world.steps["far"]}
    assert not any(getattr(plan, SKIP) for plan in plans)
    assert world.scheduler._budgets._thoughts == {}


def test_alone_it_leaves_no_hole_in_the_drafts_cache() -> None:
    world = Pretence()
    (start,) = world.scheduler._budgets._start
    world.add("near", prompt=[1, start]).sampling_params.thinking_token_budget = 2
    assert not any(getattr(world.step(), SKIP) for _ in range(5))
