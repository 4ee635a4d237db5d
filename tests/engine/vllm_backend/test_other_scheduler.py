"""An engine with a scheduler that is not ours."""

from __future__ import annotations

import pytest

from tests.engine.drive import make_greedy, run_all
from tests.engine.vllm_backend.conftest import run_engine

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

Prompts = list[tuple[int, ...]]


async def test_under_another_scheduler_no_depth_is_planned(
    prompts: Prompts, caplog: pytest.LogCaptureFixture
) -> None:
    another = "vllm.v1.core.sched.scheduler.Scheduler"
    async with run_engine(scheduler_cls=another, planning="auto") as engine:
        await run_all(engine, [make_greedy("1", prompts[0], 8)])
        assert await engine.describe_planning() == {}
        assert not await engine.freeze_planning(1)
        with pytest.raises(ValueError, match="scheduler that is not eaglegate's"):
            await engine.set_depth(1)
    assert "depths are not planned" in caplog.text
