"""Asynchronous scheduling, the default on GPUs, forced on the CPU: the same text, depths and
accounts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.drive import fix_depth, make_greedy, run_all, run_engine, speculation
from tests.engine.vllm_backend.conftest import (
    FEW,
    MOST,
    SECOND_RUNNER,
    SMALL,
    TOKENS,
    asynchronous_scheduling,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

DEPTHS = (0, 2, None) if SECOND_RUNNER else (0, 1, 3, MOST, None)


@pytest_asyncio.fixture(loop_scope="session")
async def asynchronous() -> AsyncGenerator[VllmEngine, None]:
    with asynchronous_scheduling():
        async with run_engine(**SMALL, speculative_config=speculation(MOST)) as engine:
            assert engine._llm is not None
            assert engine._llm.vllm_config.scheduler_config.async_scheduling
            yield engine


@pytest.mark.gpu_path
async def test_asynchronous_scheduling_gives_the_same(
    asynchronous: VllmEngine, plain_engine: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    free = [make_greedy(f"a-{at}", prompt, TOKENS) for at, prompt in enumerate(prompts[:FEW])]
    wanted = [outcome.token_ids for outcome in await run_all(plain_engine, free)]
    mixed = [fix_depth(depth, request) for request in free for depth in DEPTHS]
    outcomes = await run_all(asynchronous, mixed)
    assert [outcome.token_ids for outcome in outcomes] == [one for one in wanted for _ in DEPTHS]
    for request, outcome in zip(mixed, outcomes, strict=True):
        deepest = len(outcome.totals.proposed_at)
        assert outcome.totals.imbalance == 0, request.id
        assert deepest == (MOST if request.depth is None else request.depth), request.id
        assert bool(outcome.totals.accepted) == bool(deepest), request.id
    accepted = 0
    for mode in ("random", "auto"):
        assert await asynchronous.set_planning(mode) == mode
        outcomes = await run_all(asynchronous, free)
        assert [outcome.token_ids for outcome in outcomes] == wanted, mode
        assert all(outcome.totals.imbalance == 0 for outcome in outcomes)
        accepted += sum(outcome.totals.accepted for outcome in outcomes)
    assert accepted > 0
