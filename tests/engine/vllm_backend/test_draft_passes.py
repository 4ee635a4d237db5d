"""A decode step at depth 0 runs no draft model; a prompt and every other step do.

And what the second model runner does without our patches of it: each is needed, and seen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.drive import fix_depth, make_greedy, run, run_all, speculation
from tests.engine.vllm_backend.conftest import SECOND_RUNNER, SMALL, run_engine

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WORKER = "tests.engine.vllm_backend.counting_worker.CountingWorker"
DRAFT_PASS = (
    "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator",
    "TargetDependentARSpeculator",
    "propose",
)
VERIFY = ("vllm.v1.worker.gpu.spec_decode.rejection_sampler", "RejectionSampler", "_verify")
TOKENS = 12
DEPTH = 2
Prompts = list[tuple[int, ...]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def counting() -> AsyncGenerator[VllmEngine, None]:
    config = {**SMALL, "worker_extension_cls": WORKER, "speculative_config": speculation(DEPTH)}
    async with run_engine(**config) as engine:
        await count_passes(engine)
        yield engine


async def count_passes(engine: VllmEngine) -> int:
    """Passes since the last call."""
    assert engine._llm is not None
    (counted,) = await engine._llm.collective_rpc("count_draft_passes")
    return int(counted)


@asynccontextmanager
async def without(engine: VllmEngine, patch: tuple[str, str, str]) -> AsyncGenerator[None, None]:
    assert engine._llm is not None
    await engine._llm.collective_rpc("remove_patch", args=patch)
    yield
    await engine._llm.collective_rpc("restore_patch")


@pytest.mark.gpu_path
async def test_only_decode_steps_at_depth_0_run_no_draft_model(
    counting: VllmEngine, prompts: Prompts
) -> None:
    request = make_greedy("passes", prompts[1], TOKENS, ignore_eos=True)
    await count_passes(counting)
    without_drafts = await run(counting, fix_depth(0, request))
    assert await count_passes(counting) == 1, "the prompt's"
    shallow = await run(counting, fix_depth(1, request))
    assert await count_passes(counting) >= shallow.totals.verify_steps
    assert shallow.token_ids == without_drafts.token_ids


@pytest.mark.gpu_path
@pytest.mark.skipif(not SECOND_RUNNER, reason="a patch of the second model runner")
async def test_without_its_patch_the_second_runner_drafts_at_depth_0(
    counting: VllmEngine, prompts: Prompts
) -> None:
    request = fix_depth(0, make_greedy("unpatched", prompts[1], TOKENS, ignore_eos=True))
    async with without(counting, DRAFT_PASS):
        await count_passes(counting)
        await run(counting, request)
        assert await count_passes(counting) >= TOKENS - 1
    await run(counting, request)
    assert await count_passes(counting) == 1


@pytest.mark.gpu_path
@pytest.mark.skipif(not SECOND_RUNNER, reason="a patch of the second model runner")
async def test_without_its_patch_the_text_of_a_seed_depends_on_the_depth(
    counting: VllmEngine, prompts: Prompts
) -> None:
    requests = [
        EngineRequest(f"seed-{seed}", prompts[1], Sampling(TOKENS, temperature=1.5, seed=seed))
        for seed in range(6)
    ]

    async def write(depth: int) -> list[tuple[int, ...]]:
        outcomes = await run_all(counting, [fix_depth(depth, request) for request in requests])
        return [outcome.token_ids for outcome in outcomes]

    plain = await write(0)
    assert await write(DEPTH) == plain
    async with without(counting, VERIFY):
        assert await write(DEPTH) != plain
