"""``eaglegate prove`` is red, in the right line, for faults in a real engine.

One engine serves all tests; each fault is switched on, judged, and switched off again. `make
prove-gpu-path` shows that the second runner passes all checks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo
from eaglegate.engine.vllm_backend.arguments import DEMO
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.position_noise import draw_noise
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.engine.vllm_backend.translate import describe_engine
from eaglegate.lab.prove import checks
from eaglegate.lab.prove.trial import (
    OPENINGS,
    QUICK,
    ProofOutcome,
    Trial,
    record_reference,
)
from tests.engine.draft_copies import make_noise
from tests.engine.drive import inject, speculation
from tests.engine.vllm_backend.conftest import SMALL, run_engine
from tests.engine.vllm_backend.faulty import (
    ACCEPTS_TOO_MANY,
    DRAFTS_TOO_MANY,
    FALLS_BACK,
    IGNORES_TEMPERATURE,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WORKER = "tests.engine.vllm_backend.faulty.FaultyWorker"
DEPTH = 3
COMPILED: dict[str, Any] = {
    "enforce_eager": False,
    "compilation_config": {"mode": 2, "backend": "eager"},
}
"""Traced by Dynamo and compiled by nothing, which starts fast."""


class OneEngine:
    """A lane over one engine that nobody restarts."""

    draft_folder = DEMO / "eagle3_1"

    def __init__(self, engine: VllmEngine, info: EngineInfo) -> None:
        self.engine, self.info = engine, info
        self.generate = engine.generate
        self.describe_execution = engine.describe_execution
        self.freeze_planning = engine.freeze_planning
        self.count_drafts = engine.count_drafts
        self.kill = engine.kill

    @property
    def unclaimed(self) -> Totals:
        return self.engine.unclaimed

    async def exchange_draft(self, folder: Path) -> float:
        return await self.engine.swap_draft(str(folder), str(self.draft_folder))

    async def restore_draft(self) -> float:
        return await self.engine.swap_draft(str(self.draft_folder), str(self.draft_folder))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trial(
    prompts: list[tuple[int, ...]],
    renderer: VllmRenderer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Trial, None]:
    """The reference is the same engine's text at depth 0."""
    config: dict[str, Any] = {
        **SMALL,
        **COMPILED,
        "speculative_config": speculation(DEPTH),
        "worker_extension_cls": WORKER,
    }
    async with run_engine(**config) as engine:
        assert engine._llm is not None
        lane = OneEngine(engine, describe_engine(engine._llm.vllm_config))
        await engine.set_depth(0)
        reference = await record_reference(lane, prompts[:4], QUICK, measure=False)
        await engine.set_depth(DEPTH)
        folder = tmp_path_factory.mktemp("prove")
        openings = [tuple(renderer.encode(text, add_special_tokens=True)) for text in OPENINGS]
        yield Trial(
            lane,
            QUICK,
            prompts[:4],
            openings,
            reference,
            folder,
            noise=draw_noise,
            dtype="float32",
        )


CHECKS = {check.name: check.run for check in checks.CHECKS if not check.measures_speed}


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "continuation"])
async def test_without_a_fault_all_pass(trial: Trial, name: str) -> None:
    found = await CHECKS[name](trial)
    assert found.outcome is ProofOutcome.PASSED, found.evidence


async def test_the_engine_is_compiled_as_asked(trial: Trial) -> None:
    found = await CHECKS["execution"](trial)
    assert "compiled (DYNAMO_TRACE_ONCE)" in found.evidence


async def test_a_draft_of_noise(trial: Trial, tmp_path: Path) -> None:
    noise = make_noise(tmp_path / "noise")
    await trial.lane.exchange_draft(noise)
    try:
        found = await CHECKS["acceptance"](trial)
        text = await CHECKS["greedy text"](trial)
    finally:
        await trial.lane.engine.swap_draft(  # type: ignore[attr-defined]
            str(trial.lane.draft_folder), str(noise)
        )
    assert found.outcome is ProofOutcome.FAILED, found.evidence
    assert text.outcome is ProofOutcome.PASSED, text.evidence


async def test_a_sampler_that_ignores_the_temperature(trial: Trial) -> None:
    async with inject(trial.lane.engine, IGNORES_TEMPERATURE):
        found = await CHECKS["sampled text"](trial)
        text = await CHECKS["greedy text"](trial)
    assert found.outcome is ProofOutcome.FAILED, found.evidence
    assert text.outcome is ProofOutcome.PASSED, text.evidence


async def test_a_scheduler_that_drafts_one_too_many(trial: Trial) -> None:
    async with inject(trial.lane.engine, DRAFTS_TOO_MANY):
        found = await CHECKS["depth per request"](trial)
        text = await CHECKS["greedy text"](trial)
    assert found.outcome is ProofOutcome.FAILED, found.evidence
    assert text.outcome is ProofOutcome.PASSED, text.evidence


async def test_an_engine_that_falls_back_to_eager(trial: Trial) -> None:
    async with inject(trial.lane.engine, FALLS_BACK):
        found = await CHECKS["execution"](trial)
    assert found.outcome is ProofOutcome.FAILED
    assert "fell back to eager" in found.evidence
    assert (await CHECKS["execution"](trial)).outcome is ProofOutcome.PASSED


async def test_a_scheduler_that_accepts_one_draft_too_many(trial: Trial) -> None:
    """The last test: what it leaves in the caches is wrong."""
    async with inject(trial.lane.engine, ACCEPTS_TOO_MANY):
        found = await CHECKS["greedy text"](trial)
    assert found.outcome is ProofOutcome.FAILED, found.evidence
