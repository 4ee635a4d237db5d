"""The draft of a real engine is exchanged while streams run: no text changes, acceptance does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.speculation.drafts.files import DraftPlan, DraftStore
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Arm
from eaglegate.engine.vllm_backend.arguments import DEMO, DEMO_SPECULATION
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.features.canary.arms import ArmsNow, ArmSums, Collapsed
from eaglegate.features.canary.drafts import DraftChange
from tests.engine.draft_copies import EAGLE31, change_weights, make_noise
from tests.engine.drive import Outcome, make_greedy, run_all
from tests.engine.vllm_backend.conftest import FEW, SECOND_RUNNER

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


LENGTH = 40 if SECOND_RUNNER else 80


def manage(engine: VllmEngine) -> DraftManager:
    plan = DraftPlan(str(DEMO / "target"), DEMO_SPECULATION)
    manager = DraftManager(plan, DraftStore())
    manager.open()
    manager.choose_path()
    manager.attach(engine)
    return manager


def texts(outcomes: Sequence[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.token_ids for outcome in outcomes]


def acceptance(outcomes: Sequence[Outcome]) -> float:
    totals = sum((outcome.totals for outcome in outcomes[1:]), outcomes[0].totals)
    assert totals.acceptance_length is not None
    return totals.acceptance_length


async def run_prompts(
    engine: VllmEngine, prompts: Sequence[tuple[int, ...]], name: str, tokens: int = LENGTH
) -> list[Outcome]:
    return await run_all(
        engine,
        [make_greedy(f"{name}-{at}", prompt, tokens) for at, prompt in enumerate(prompts[:FEW])],
    )


async def check_swaps(engine: VllmEngine, prompts: list[tuple[int, ...]], folder: Path) -> None:
    manager = manage(engine)
    other = str(make_noise(folder / "noise"))
    before = await run_prompts(engine, prompts, "before")
    exchanged = asyncio.Event()
    streams = asyncio.create_task(run_until(exchanged, engine, prompts))
    await asyncio.sleep(0.1)
    done = [await manager.swap(other), await manager.rollback(), await manager.swap(other)]
    exchanged.set()
    rounds = await streams
    noise = await run_prompts(engine, prompts, "noise")
    await manager.rollback()
    after = await run_prompts(engine, prompts, "after")
    for outcomes in (noise, after, *rounds):
        assert texts(outcomes) == texts(before)
    assert acceptance(noise) < 1.2 < 1.8 < acceptance(before)
    assert acceptance(after) == pytest.approx(acceptance(before), rel=0.01)
    assert all(0 < swap.pause_s < 10 for swap in done)
    print(acceptance(before), acceptance(noise), acceptance(after))
    print([round(1000 * swap.pause_s) for swap in manager.swaps])


async def run_until(
    exchanged: asyncio.Event, engine: VllmEngine, prompts: Sequence[tuple[int, ...]]
) -> list[list[Outcome]]:
    """Streams without a pause, so that every exchange comes while some run."""
    rounds: list[list[Outcome]] = []
    while not exchanged.is_set():
        rounds.append(await run_prompts(engine, prompts, f"during-{len(rounds)}"))
    return rounds


@pytest.mark.gpu_path
async def test_streams_go_on_with_the_same_text_and_a_rollback_brings_acceptance_back(
    engine: VllmEngine, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    await check_swaps(engine, prompts, tmp_path)


class SlotTotals:
    """A canary's knowledge of the traffic: the steps that each draft served."""

    def __init__(self) -> None:
        self._totals: dict[str, Totals] = {}

    def add(self, draft: str, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes five times: a judgement needs more steps than the prompts take."""
        totals = (one.totals for one in [*outcomes] * 5)
        self._totals[draft] = sum(totals, self.total_of(draft))

    def total_of(self, draft: str) -> Totals:
        return self._totals.get(draft, Totals())


async def test_a_canary_slot_leaves_texts_alone_and_sees_a_bad_draft(
    engine: VllmEngine, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    manager, traffic = manage(engine), SlotTotals()
    noise = str(make_noise(tmp_path / "noise"))
    change = DraftChange(noise, manager, traffic)
    before = await run_prompts(engine, prompts, "before")
    await change.start()
    now = ArmsNow(ArmSums(), ArmSums())
    for slot, arm in enumerate((Arm.CONTROL, Arm.CANDIDATE, Arm.CONTROL)):
        await change.enter(arm)
        assert manager.in_trial == (arm is Arm.CANDIDATE)
        outcomes = await run_prompts(engine, prompts, f"slot-{slot}")
        assert texts(outcomes) == texts(before)
        assert manager.serving is not None
        traffic.add(manager.serving.fingerprint, outcomes)
        if arm is Arm.CANDIDATE:
            assert acceptance(outcomes) < 1.2
            with pytest.raises(Collapsed, match="acceptance collapsed"):
                change.check(now)
        else:
            assert acceptance(outcomes) == pytest.approx(acceptance(before), rel=0.01)
    await change.enter(Arm.CANDIDATE)
    await change.leave()
    assert not manager.in_trial
    after = await run_prompts(engine, prompts, "after")
    assert acceptance(after) == pytest.approx(acceptance(before), rel=0.01)


@pytest.mark.parametrize("fault", ["absent", pytest.param("shape", marks=pytest.mark.gpu_path)])
async def test_a_draft_that_fails_to_load_leaves_the_running_one(
    engine: VllmEngine, prompts: list[tuple[int, ...]], tmp_path: Path, fault: str
) -> None:
    """The second fails when half of it is loaded."""
    folder = tmp_path / "broken"
    if fault == "shape":
        change_weights(folder, lambda name, one: one[:1] if name == "norm.weight" else -one)
    before = await run_prompts(engine, prompts, "whole")
    with pytest.raises(EngineFailed, match="not exchanged"):
        await engine.swap_draft(str(folder), str(EAGLE31))
    after = await run_prompts(engine, prompts, "still")
    assert texts(after) == texts(before)
    assert acceptance(after) == pytest.approx(acceptance(before), rel=0.01)
