"""Lookups beside EAGLE on vLLM's second model runner, with both kinds of scheduling: the text of an
engine without a draft, valid grammars, exact accounts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.types import Constraint, Drafter, EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.translate import describe_engine
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
from tests.engine.vllm_backend.conftest import SECOND_RUNNER, SMALL, asynchronous_scheduling
from tests.engine.vllm_backend.test_lookups import (
    assert_equal,
    planning,
    sum_lookups,
    test_an_operators_bound_holds_for_lookups,
    test_grammars_hold,
)

__all__ = ["test_an_operators_bound_holds_for_lookups", "test_grammars_hold"]  # of both runners

pytestmark = [
    pytest.mark.slow,
    pytest.mark.gpu_path,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(not SECOND_RUNNER, reason="the second runner's lookups"),
]

WIDTH, DEPTH = 7, 3
TOKENS = 40
ABC = (68, 69, 70, 266)
"""Tokens of ``abc, ``."""
WORKER = "tests.engine.vllm_backend.overlay_worker.OverlayWorker"
WIDEN = partial(add_lookups, width=WIDTH)
SETTINGS: dict[str, Any] = {
    **SMALL,
    "speculative_config": speculation(DEPTH),
    "worker_extension_cls": WORKER,
}


@pytest_asyncio.fixture(
    scope="module", loop_scope="session", params=["asynchronous", "synchronous"]
)
async def lookup_engine(request: pytest.FixtureRequest) -> AsyncGenerator[VllmEngine, None]:
    """Its planner is off, because it learns the price of a token from the times of steps."""
    with asynchronous_scheduling() if request.param == "asynchronous" else nullcontext():
        async with run_engine("off", configure=WIDEN, **SETTINGS) as engine:
            assert engine._llm is not None
            is_asynchronous = engine._llm.vllm_config.scheduler_config.async_scheduling
            assert is_asynchronous == (request.param == "asynchronous")
            yield engine


@pytest.fixture(scope="module")
def copies(prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Prompts that the target continues by copying, and an ordinary one."""
    rng = random.Random(0)
    units = [[rng.randrange(300, 900) for _ in range(size)] for size in (5, 11)]
    return [*((*unit * (120 // len(unit)), *unit[:2]) for unit in units), prompts[1]]


async def test_greedy_and_seeded_text_is_the_same(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    requests = [
        *(make_greedy(f"g-{i}", prompt, TOKENS) for i, prompt in enumerate(copies)),
        EngineRequest("s", copies[0], Sampling(TOKENS, temperature=0.8, seed=3)),
    ]
    outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, await run_all(plain_engine, requests))
    num_lookups, num_drafted, num_accepted = sum_lookups(outcomes)
    assert num_lookups > 2
    assert num_accepted > num_drafted / 3
    assert_widths(outcomes)
    assert max(s.drafted for o in outcomes for s in o.account.decode_steps) > DEPTH


def assert_widths(outcomes: Sequence[Outcome]) -> None:
    """Every verified token has one drafter, and the draft stays within its own K."""
    for outcome in outcomes:
        steps = outcome.account.decode_steps
        draft_steps = [step for step in steps if step.drafter is Drafter.DRAFT]
        assert all(step.drafted <= max(DEPTH, step.accepted + step.cut) for step in draft_steps)
        totals = outcome.totals
        assert totals.lookup_steps == len(steps) - len(draft_steps)
        num_drafted = sum(step.drafted for step in draft_steps)
        assert num_drafted + totals.lookup_proposed == totals.proposed
        num_accepted = sum(step.accepted for step in draft_steps)
        assert num_accepted + totals.lookup_accepted == totals.accepted


async def test_text_does_not_depend_on_the_choice(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    requests = [
        fix_depth(depth, make_greedy(f"r-{i}", copies[i], TOKENS))
        for i, depth in ((0, 0), (1, 1), (0, DEPTH), (0, WIDTH), (1, None), (2, None))
    ]
    reference = await run_all(plain_engine, requests)
    async with planning(lookup_engine, "random"):
        outcomes = await run_all(lookup_engine, requests)
    assert_equal(outcomes, reference)
    assert_widths(outcomes)
    assert sum_lookups(outcomes[:1])[0] == 0
    for request, outcome in zip(requests, outcomes, strict=True):
        widths = [step.drafted for step in outcome.account.decode_steps]
        assert max(widths) <= (WIDTH if request.depth is None else request.depth), request.id
    num_lookups, num_drafted, num_accepted = sum_lookups(outcomes)
    assert num_lookups > 4
    assert 0 < num_accepted < num_drafted


async def test_a_grammar_breaks_if_lookups_replace_validated_drafts(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    """The bitmasks of a grammar hold for the drafts that were handed over, and for no others."""
    assert lookup_engine._llm is not None
    if not lookup_engine._llm.vllm_config.scheduler_config.async_scheduling:
        pytest.skip("with synchronous scheduling drafts are validated before they are scheduled")
    letter, *_, comma = ABC
    requests = [
        replace(
            make_greedy(f"trap-{i}", (*copies[-1], *ABC * 12), 60),
            constraint=Constraint("regex", rf"([a-z]+, ){{{count}}}x\."),
        )
        for i, count in enumerate((6, 7, 8, 9))
    ]
    reference = await run_all(plain_engine, requests)
    assert all(outcome.token_ids.count(comma) > 4 for outcome in reference)
    outcomes = await run_all(lookup_engine, requests)
    await lookup_engine._llm.collective_rpc("overlay_lookups", args=(letter,))
    try:
        runs = [run(lookup_engine, request) for request in requests]
        overlaid = await asyncio.gather(*runs, return_exceptions=True)
    finally:
        await lookup_engine._llm.collective_rpc("overlay_lookups", args=(None,))
    assert_equal(outcomes, reference)
    assert sum_lookups(outcomes)[2] > 0
    texts = [o.token_ids if isinstance(o, Outcome) else None for o in overlaid]
    assert texts != [o.token_ids for o in reference]


async def test_preempted_and_aborted_requests_leave_nothing(
    lookup_engine: VllmEngine, plain_engine: VllmEngine, copies: list[tuple[int, ...]]
) -> None:
    """Six requests of four blocks each, where the engine has twenty."""
    requests = [
        make_greedy(f"p-{i}", (*copies[-1][i:], *ABC * 90)[: 352 - i], 48, ignore_eos=True)
        for i in range(6)
    ]
    leavers = [
        asyncio.ensure_future(run(lookup_engine, replace(request, id=f"l-{i}"), leave_after=4 + i))
        for i, request in enumerate(requests[:2])
    ]
    outcomes = await run_all(lookup_engine, requests)
    await asyncio.gather(*leavers)
    assert_equal(outcomes, await run_all(plain_engine, requests))
    assert_widths(outcomes)
    assert sum_lookups(outcomes)[2] > 20
    lookups = (await lookup_engine.describe_planning())["lookups"]
    assert lookups["indexed_tokens"] == 0


async def test_the_gateway_encodes_no_twins_for_these_lookups(lookup_engine: VllmEngine) -> None:
    assert lookup_engine._llm is not None
    speculation = describe_engine(lookup_engine._llm.vllm_config).speculation
    assert (speculation.lookup, speculation.takes_quotes) == (WIDTH, False)
