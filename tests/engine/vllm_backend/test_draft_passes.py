"""A decode step at depth 0 runs no draft model; a prompt and every other step do."""

from __future__ import annotations

import pytest

from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.lab.benchmarks.drive import at, greedy, run, running, speculation
from tests.engine.vllm_backend.conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WORKER = "tests.engine.vllm_backend.counting_worker.CountingWorker"
TOKENS = 12


async def count_passes(engine: VllmEngine) -> int:
    assert engine._llm is not None
    (counted,) = await engine._llm.collective_rpc("count_draft_passes")
    return int(counted)


@pytest.mark.gpu_path
async def test_only_decode_steps_at_depth_0_run_no_draft_model(
    prompts: list[tuple[int, ...]],
) -> None:
    config = {**SMALL, "worker_extension_cls": WORKER, "speculative_config": speculation(2)}
    request = greedy("passes", prompts[1], TOKENS, ignore_eos=True)
    async with running(**config) as engine:
        await count_passes(engine)
        without = await run(engine, at(0, request))
        assert await count_passes(engine) == 1, "the prompt's"
        shallow = await run(engine, at(1, request))
        assert await count_passes(engine) >= shallow.totals.verify_steps
        assert shallow.token_ids == without.token_ids
