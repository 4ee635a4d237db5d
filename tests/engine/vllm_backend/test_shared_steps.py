"""Classes of keys on real engines: rations are at work, and no text depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.drive import Outcome, make_greedy, run, run_all
from tests.engine.vllm_backend.conftest import FEW, MOST

pytestmark = [pytest.mark.alone, pytest.mark.asyncio(loop_scope="session")]
"""Rations follow from times of steps, which are wrong beside other engines."""

TOKENS = 40
LONG = 120
"""Tokens of answers of the latency class."""
CLASSES: tuple[dict[str, object], ...] = (
    {"tenant": "reports"},
    {"tenant": "nightly", "weight": 4.0},
)
Prompts = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def others(prompts: Prompts) -> list[EngineRequest]:
    """Greedy and seeded requests of two batch classes."""
    hot = Sampling(max_tokens=TOKENS, temperature=1.5, top_k=40, seed=7, ignore_eos=True)
    made = []
    for at, prompt in enumerate(prompts[:FEW]):
        chosen = CLASSES[at % 2]
        made.append(replace(make_greedy(f"g{at}", prompt, TOKENS, ignore_eos=True), **chosen))
        made.append(replace(EngineRequest(f"s{at}", prompt, hot), **chosen))
    return made


@pytest.fixture(scope="module")
def firsts(prompts: Prompts) -> list[EngineRequest]:
    """Two requests of a latency class, one greedy and one seeded."""
    hot = Sampling(max_tokens=LONG, temperature=1.2, top_p=0.95, seed=3, ignore_eos=True)
    greedy = make_greedy("fast-g", prompts[1], LONG, ignore_eos=True)
    made = greedy, EngineRequest("fast-s", prompts[2], hot)
    return [replace(one, tenant="chat", latency_ms=0.0) for one in made]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def alone(
    plain_engine: VllmEngine, firsts: list[EngineRequest], others: list[EngineRequest]
) -> dict[str, tuple[int, ...]]:
    """Texts of an engine without a draft, one request at a time."""
    return {one.id: (await run(plain_engine, one)).token_ids for one in [*firsts, *others]}


@asynccontextmanager
async def kept_running(
    engine: VllmEngine, firsts: list[EngineRequest]
) -> AsyncGenerator[list[tuple[str, Outcome]], None]:
    """Requests of the latency class, one after another; the finished ones by their first name."""
    done: list[tuple[str, Outcome]] = []
    over = asyncio.Event()

    async def keep(request: EngineRequest) -> None:
        numbers = count()
        while not over.is_set():
            named = replace(request, id=f"{request.id}#{next(numbers)}")
            done.append((request.id, await run(engine, named)))

    tasks = [asyncio.create_task(keep(one)) for one in firsts]
    try:
        yield done
    finally:
        over.set()
        await asyncio.gather(*tasks)


def add_up(outcomes: list[Outcome]) -> Totals:
    return sum((one.totals for one in outcomes), Totals())


def mean_depth(outcomes: list[Outcome]) -> float:
    return add_up(outcomes).mean_depth or 0.0


@pytest.mark.parametrize("mode", ["off", "auto"])
async def test_rations_hold_and_no_text_depends_on_them(
    engine: VllmEngine,
    firsts: list[EngineRequest],
    others: list[EngineRequest],
    alone: dict[str, tuple[int, ...]],
    mode: str,
) -> None:
    """Without classes every request verifies as many drafts as the other; with them the batch
    classes get fewer, and the latency class as many as before."""
    assert await engine.set_planning(mode) == mode
    try:
        equal = [replace(one, latency_ms=None) for one in firsts]
        async with kept_running(engine, equal) as unlimited:
            before = await run_all(engine, others)
        async with kept_running(engine, firsts) as first:
            shared = await run_all(engine, others)
        sharing: Any = (await engine.describe_planning())["sharing"]
    finally:
        assert await engine.set_planning("off") == "off"
    for chosen in CLASSES:
        turns = sharing["keys"][chosen["tenant"]]
        assert min(turns["in_step"], turns["waited"]) > 0, chosen
    for name, outcome in [*unlimited, *first]:
        assert outcome.token_ids == alone[name], name
    for outcomes in (before, shared):
        for request, outcome in zip(others, outcomes, strict=True):
            assert outcome.token_ids == alone[request.id], request.id
            assert outcome.totals.imbalance == 0
    assert add_up(shared).accepted > 0
    assert mean_depth(shared) < 0.8 * mean_depth(before)
    if mode == "off":
        assert mean_depth(before) > 0.8 * MOST
        kept = mean_depth([outcome for _, outcome in first])
        assert kept > 0.95 * mean_depth([outcome for _, outcome in unlimited])
