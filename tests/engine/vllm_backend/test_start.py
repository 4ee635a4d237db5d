"""The message when an engine cannot start, and the accounts of an engine that was killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from eaglegate.engine.errors import EngineDead, EngineStartError
from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest
from eaglegate.engine.vllm_backend.arguments import DEMO, make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.drive import Outcome, make_greedy, run, speculation
from tests.engine.vllm_backend.conftest import SMALL

pytestmark = pytest.mark.slow


def draft(folder: Path, **changes: Any) -> dict[str, Any]:
    """The demo's draft with other flags in its config.json; None takes a flag away."""
    shutil.copytree(DEMO / "eagle3_1", folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return speculation(3) | {"model": str(folder)}


async def start_error(**chosen: Any) -> EngineStartError:
    engine = VllmEngine(make_demo_arguments(**SMALL, **chosen))
    with pytest.raises(EngineStartError) as raised:
        await engine.start()
    assert not (await engine.health()).live
    return raised.value


async def test_a_draft_that_does_not_load_names_the_cause(tmp_path: Path) -> None:
    """vLLM itself says: engine core initialization failed, see root cause above."""
    error = await start_error(speculative_config=draft(tmp_path / "d", fc_norm=None))
    assert "fc_norm" in str(error)
    assert "Traceback" in error.detail


class Started(NamedTuple):
    engine: VllmEngine
    parts: Mapping[str, float]
    whole_s: float


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started() -> AsyncGenerator[Started, None]:
    engine = VllmEngine(make_demo_arguments(**SMALL), planning="auto", timing_s=0.5)
    began = time.monotonic()
    info = await engine.start()
    yield Started(engine, info.start_s, time.monotonic() - began)
    await engine.aclose()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_parts_of_a_start_sum_to_the_whole(started: Started) -> None:
    assert sum(started.parts.values()) == pytest.approx(started.whole_s, rel=0.05)
    parts = {"engine process", "weights", "profiling", "capture", "warm-up", "timing"}
    assert min(started.parts[part] for part in parts) > 0
    assert started.parts["compilation"] == 0, "the demo is eager on a CPU"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_killed_engine_ends_its_requests_with_exact_accounts(started: Started) -> None:
    engine, begun = started.engine, asyncio.Barrier(7)
    streams = [
        asyncio.create_task(until_death(engine, endless(number), begun)) for number in range(6)
    ]
    await asyncio.wait_for(begun.wait(), 30)
    assert engine.kill() == 1
    outcomes = await asyncio.wait_for(asyncio.gather(*streams), 10)
    assert all(outcome.totals.imbalance == 0 for outcome in outcomes)
    assert all(outcome.totals.tokens > 1 for outcome in outcomes)
    assert not (await engine.health()).live
    with pytest.raises(EngineDead):
        await run(engine, make_greedy("late", (1, 2), 3))


def endless(number: int) -> EngineRequest:
    return make_greedy(f"endless-{number}", (9, 8, 7 + number), 900, ignore_eos=True)


async def until_death(
    engine: VllmEngine, request: EngineRequest, begun: asyncio.Barrier
) -> Outcome:
    """All that came until the engine died; meets the others once a draft has been verified."""
    account = Account()
    tokens: list[int] = []
    with pytest.raises(EngineDead):
        async for step in read_steps(engine.generate, request):
            account.add(step)
            waiting = len(tokens) < 5 <= len(tokens) + len(step.token_ids)
            tokens += step.token_ids
            if waiting:
                await begun.wait()
    return Outcome(tuple(tokens), None, (), 0, account)
