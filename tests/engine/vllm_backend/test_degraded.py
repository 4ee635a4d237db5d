"""A vLLM that nothing private of ours fits still serves the same text."""

from __future__ import annotations

import pytest

from eaglegate.engine import vllm_contract
from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_contract import Area
from eaglegate.lab.benchmarks.drive import greedy, run_all
from tests.engine.vllm_backend.conftest import running

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

Prompts = list[tuple[int, ...]]


async def test_what_does_not_fit_is_left_to_vllm(
    prompts: Prompts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [greedy(str(at), prompt, 48) for at, prompt in enumerate(prompts)]
    async with running(speculative_config=None) as engine:
        plain = await run_all(engine, requests)
    areas = [area for area in Area if area is not Area.ENGINE]
    monkeypatch.setattr(vllm_contract, "compare", lambda _: {area: ["renamed"] for area in areas})
    vllm_contract.find_broken.cache_clear()
    try:
        engine = VllmEngine(make_demo_arguments(), planning="auto")
        info = await engine.start()
        degraded = await run_all(engine, requests)
        assert await engine.describe_planning() == {}
        assert not await engine.freeze_planning(1)
        with pytest.raises(ValueError, match="scheduler that is not eaglegate's"):
            await engine.set_depth(1)
    finally:
        await engine.aclose()
        vllm_contract.find_broken.cache_clear()
    assert [one.token_ids for one in degraded] == [one.token_ids for one in plain]
    assert info.degraded == tuple(areas)
    assert not info.reports_decode_steps
    assert "depths are not planned" in caplog.text
    assert all(vllm_contract.LOST[area] in caplog.text for area in areas)


async def test_under_another_scheduler_no_depth_is_planned(
    prompts: Prompts, caplog: pytest.LogCaptureFixture
) -> None:
    another = "vllm.v1.core.sched.scheduler.Scheduler"
    async with running(scheduler_cls=another, planning="auto") as engine:
        await run_all(engine, [greedy("1", prompts[0], 8)])
        assert await engine.describe_planning() == {}
        assert not await engine.freeze_planning(1)
        with pytest.raises(ValueError, match="scheduler that is not eaglegate's"):
            await engine.set_depth(1)
    assert "depths are not planned" in caplog.text


async def test_without_the_public_way_in_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {Area.ENGINE: ["AsyncLLM.generate"]}
    monkeypatch.setattr(vllm_contract, "find_broken", lambda: broken)
    with pytest.raises(EngineStartError, match=r"AsyncLLM\.generate.*nothing can be served"):
        await VllmEngine(make_demo_arguments()).start()
