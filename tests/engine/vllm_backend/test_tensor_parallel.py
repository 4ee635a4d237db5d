"""Two workers on two cores: the same text, acceptance and exchanges of drafts as one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from eaglegate.engine.stop_signals import STOP
from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.drive import fix_depth, make_greedy, run, run_all, speculation
from tests.engine.vllm_backend.conftest import SECOND_RUNNER, SMALL, TOKENS, run_engine
from tests.engine.vllm_backend.test_draft_swap import check_swaps
from tests.faults.engine_process import (
    descendants,
    find_parent,
    is_running,
    title,
    wait_until_gone,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

DEPTHS = (0, 3) if SECOND_RUNNER else (0, 1, 3)


@pytest.fixture
def whole(request: pytest.FixtureRequest) -> VllmEngine:
    """One worker: with a draft, too, where kernels are not interpreted and it is quick."""
    name = "plain_engine" if SECOND_RUNNER else "engine"
    started: VllmEngine = request.getfixturevalue(name)
    return started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two() -> AsyncGenerator[VllmEngine, None]:
    config = {**SMALL, "tensor_parallel_size": 2, "speculative_config": speculation(3)}
    async with run_engine(**config) as engine:
        yield engine


@pytest.mark.gpu_path
async def test_two_workers_write_and_accept_what_one_does(
    whole: VllmEngine, two: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    prompts = prompts[:2]
    requests = [
        fix_depth(depth, make_greedy(f"tp-{number}", prompt, TOKENS))
        for number, prompt in enumerate(prompts)
        for depth in DEPTHS
    ]
    one = await run_all(whole, requests)
    both = await run_all(two, requests)
    assert await two.set_planning("random") == "random"
    free = [make_greedy(f"free-{number}", prompt, TOKENS) for number, prompt in enumerate(prompts)]
    planned = await run_all(two, free)
    assert await two.set_planning("off") == "off"
    for ours, theirs, request in zip(both, one, requests, strict=True):
        assert ours.token_ids == theirs.token_ids, request.id
        if not SECOND_RUNNER:
            assert ours.totals.histogram == theirs.totals.histogram, request.id
        assert ours.totals.imbalance == 0
    assert sum(outcome.totals.accepted for outcome in both) > 20
    for ours, theirs in zip(planned, one[:: len(DEPTHS)], strict=True):
        assert ours.token_ids == theirs.token_ids, "at random depths"
        assert ours.totals.imbalance == 0
    assert sum(outcome.totals.accepted for outcome in planned) > 0


async def test_two_workers_exchange_their_shards(
    two: VllmEngine, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    await check_swaps(two, prompts[:2], tmp_path)


async def test_workers_leave_signals_to_the_gateway_and_end_with_their_engine(
    two: VllmEngine, prompts: list[tuple[int, ...]]
) -> None:
    workers = [pid for pid in descendants(os.getpid()) if "Worker_TP" in title(pid)]
    assert len(workers) == 2
    (parent,) = {find_parent(pid) for pid in workers}
    for number in STOP:
        request = make_greedy(f"signal-{number}", prompts[0], TOKENS, ignore_eos=True)
        running = asyncio.create_task(run(two, request))
        await asyncio.sleep(0.1)
        for pid in (parent, *workers):
            os.kill(pid, number)
        assert len((await running).token_ids) == TOKENS
    assert all(map(is_running, workers))
    os.kill(parent, signal.SIGKILL)
    await asyncio.to_thread(wait_until_gone, workers)
