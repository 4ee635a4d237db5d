"""Lookups beside EAGLE on a real engine: the text of an engine without a draft, exact accounts.

The demo's draft copies by itself, so its prompts show that lookups are right, not that they pay.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.types import Constraint, Drafter, EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.features.lookups.engine.arguments import add_lookups
from tests.engine.drive import (
    Outcome,
    fix_depth,
    make_greedy,
    run,
    run_all,
    run_engine,
    speculation,
)
from tests.engine.vllm_backend.conftest import SECOND_RUNNER, SMALL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(SECOND_RUNNER, reason="the lookups of the first runner"),
]

WIDTH, DEPTH = 8, 3
SCHEMA = {"type": "array", "items": {"enum": ["Paris", "Rome"]}, "minItems": 9, "maxItems": 9}
CONSTRAINTS = {
    "json_schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "regex": Constraint("regex", r"(abc, ){12}abd\."),
}
FIELDS: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 40},
    "penalties": {"presence_penalty": 0.4, "frequency_penalty": 0.2, "repetition_penalty": 1.05},
    "logit_bias": {"logit_bias": {300: 2.0, 312: -2.0}},
    "allowed": {"allowed_token_ids": tuple(range(200, 330))},
    "bad_words": {"bad_words": (" the",)},
    "logprobs": {"logprobs": 2},
    "thinking": {"thinking_token_budget": 6},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lookup_engine() -> AsyncGenerator[VllmEngine, None]:
    """Its planner is off, because it learns the price of a token from the times of steps."""
    engine = run_engine(
        "off",
        configure=partial(add_lookups, width=WIDTH),
        **SMALL,
        speculative_config=speculation(DEPTH),
        async_scheduling=False,
    )
    async with engine as started:
        yield started


@pytest.fixture(scope="module")
def copies(prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Prompts that the target continues by copying, and ordinary ones."""
    rng = random.Random(0)
    repeated = []
    for size in (5, 11, 24):
        unit = [rng.randrange(300, 900) for _ in range(size)]
        repeated.append((*unit * (160 // size), *unit[: size // 2]))
    return [*repeated, *prompts]


def sum_lookups(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    """Return lookups, their tokens, and the accepted ones."""
    steps = [
        step
        for outcome in outcomes
        for step in outcome.account.decode_steps
        if step.drafter is Drafter.LOOKUP
    ]
    return len(steps), sum(s.drafted for s in steps), sum(s.accepted for s in steps)


def assert_equal(outcomes: Sequence[Outcome], reference: Sequence[Outcome]) -> None:
    assert [o.token_ids for o in outcomes] == [o.token_ids for o in reference]
    assert [o.finish for o in outcomes] == [o.finish for o in reference]
    assert [o.totals.imbalance for o in outcomes] == [0] * len(outcomes)


@asynccontextmanager
async def planning(engine: VllmEngine, mode: str) -> AsyncGenerator[None, None]:
    """The planner in another mode, and off afterwards."""
    assert await engine.set_planning(mode) == mode
    try:
        yield
    finally:
        assert await engine.set_planning("off") == "off"


@asynccontextmanager
async def ceiling(engine: VllmEngine, depth: int) -> AsyncGenerator[None, None]:
    """An operator's bound of the depth, and none afterwards."""
    assert await engine.set_depth(depth) == depth
    try:
        yield
    finally:
        assert await engine.set_depth(WIDTH) == DEPTH


async def test_greedy_text_is_the_same(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    requests = [make_greedy(f"g-{i}", prompt, 96) for i, prompt in enumerate(copies)]
    outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, await run_all(plain_engine, requests))
    num_lookups, num_drafted, num_accepted = sum_lookups(outcomes)
    assert num_lookups > 5
    assert num_accepted > num_drafted / 2
    widths = {step.drafted for o in outcomes for step in o.account.decode_steps}
    assert max(widths) > DEPTH


@pytest.mark.parametrize("mode", ["auto", "random"])
async def test_text_does_not_depend_on_the_choice(
    lookup_engine: VllmEngine,
    plain_engine: VllmEngine,
    copies: list[tuple[int, ...]],
    mode: str,
) -> None:
    requests = [
        EngineRequest(f"r-{i}", prompt, Sampling(max_tokens=64, temperature=i % 2 * 0.8, seed=i))
        for i, prompt in enumerate(copies * 2)
    ]
    reference = await run_all(plain_engine, requests)
    async with planning(lookup_engine, mode):
        outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, reference)
    num_lookups, num_drafted, num_accepted = sum_lookups(outcomes)
    if mode == "random":
        assert num_lookups > 10
        assert 0 < num_accepted < num_drafted


async def test_seeded_text_is_the_same(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    requests = [
        EngineRequest(f"s-{i}", prompt, Sampling(max_tokens=64, temperature=0.8, seed=i))
        for i, prompt in enumerate(copies)
    ]
    outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, await run_all(plain_engine, requests))
    assert sum_lookups(outcomes)[0] > 0


@pytest.mark.parametrize("name", CONSTRAINTS)
async def test_grammars_hold(
    lookup_engine: VllmEngine,
    plain_engine: VllmEngine,
    copies: list[tuple[int, ...]],
    name: str,
) -> None:
    requests = [
        replace(make_greedy(f"{name}-{i}", prompt, 90), constraint=CONSTRAINTS[name])
        for i, prompt in enumerate(copies)
    ]
    outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, await run_all(plain_engine, requests))
    assert sum_lookups(outcomes)[2] > 0


async def test_sampling_fields_hold(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    requests = [
        make_greedy(f"{name}-{i}", prompt, 48, **given)
        for name, given in FIELDS.items()
        for i, prompt in enumerate(copies[1:3])
    ]
    outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, await run_all(plain_engine, requests))


async def test_a_depth_bounds_lookups(
    lookup_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    for depth, most in ((0, 0), (2, 2), (6, 6)):
        requests = [
            fix_depth(depth, make_greedy(f"d-{i}", prompt, 64))
            for i, prompt in enumerate(copies[:3])
        ]
        outcomes = await run_all(lookup_engine, requests)
        drafted = [step for o in outcomes for step in o.account.decode_steps]
        assert max(step.drafted for step in drafted) == most
        own = [step.drafted for step in drafted if step.drafter is Drafter.DRAFT]
        assert max(own, default=0) <= min(depth, DEPTH)


async def test_a_rule_bounds_lookups_and_no_drafts(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    requests = [make_greedy(f"b-{i}", prompt, 64) for i, prompt in enumerate(copies[:3])]
    reference = await run_all(plain_engine, requests)
    for bound in (0, 2, 5):
        outcomes = await run_all(lookup_engine, [replace(r, lookup=bound) for r in requests])
        assert_equal(outcomes, reference)
        steps = [step for outcome in outcomes for step in outcome.account.decode_steps]
        widths = {drafter: [0] for drafter in Drafter}
        for step in steps:
            widths[step.drafter].append(step.drafted)
        assert max(widths[Drafter.LOOKUP]) == bound
        assert max(widths[Drafter.DRAFT]) > 0


async def test_an_operators_bound_holds_for_lookups(
    lookup_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    request = make_greedy("bound", copies[0], 64)
    async with ceiling(lookup_engine, 1):
        outcome = await run(lookup_engine, request)
    assert max(step.drafted for step in outcome.account.decode_steps) == 1


async def test_a_depth_that_an_operator_holds_is_the_longest_lookup(
    lookup_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    async with planning(lookup_engine, "auto"):
        assert await lookup_engine.freeze_planning(2)
        try:
            outcome = await run(lookup_engine, make_greedy("held", copies[0], 64))
        finally:
            assert await lookup_engine.freeze_planning(None)
    assert max(step.drafted for step in outcome.account.decode_steps) == 2


async def test_preempted_and_aborted_requests_leave_nothing(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    long_prompts = [(*copies[2] * 3, *prompt)[-500:] for prompt in copies]
    requests = [make_greedy(f"p-{i}", prompt, 100) for i, prompt in enumerate(long_prompts[:7])]
    leavers = [
        asyncio.ensure_future(run(lookup_engine, replace(request, id=f"l-{i}"), leave_after=5 + i))
        for i, request in enumerate(requests[:3])
    ]
    outcomes = await run_all(lookup_engine, requests)
    await asyncio.gather(*leavers)
    assert_equal(outcomes, await run_all(plain_engine, requests))
    description = await lookup_engine.describe_planning()
    lookups = description["lookups"]
    assert lookups["lookups"] > 0
    assert lookups["indexed_tokens"] == 0


async def test_quotes_are_looked_up(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    requests = [make_greedy(f"q-{i}", prompt, 64) for i, prompt in enumerate(prompts)]
    reference = await run_all(plain_engine, requests)
    quoting = [
        replace(request, quotes=outcome.token_ids)
        for request, outcome in zip(requests, reference, strict=True)
    ]
    outcomes = await run_all(lookup_engine, quoting)
    assert_equal(outcomes, reference)
    num_lookups, num_drafted, num_accepted = sum_lookups(outcomes)
    assert num_lookups > 10
    assert num_accepted > 0.9 * num_drafted


async def test_quotes_outside_the_vocabulary_are_ignored(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    request = make_greedy("v", prompts[1], 32)
    (reference,) = await run_all(plain_engine, [request])
    for index, token in enumerate((-1, 10**6)):
        quotes = (*reference.token_ids, token)
        hostile = replace(request, id=f"v-{index}", quotes=quotes)
        assert_equal(await run_all(lookup_engine, [hostile]), [reference])
