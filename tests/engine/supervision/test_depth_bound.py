"""The bound on the draft's depth holds in every engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from eaglegate.engine.base import SupportsPlanning
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.policy import AppliedDepth
from eaglegate.engine.types import Sampling
from tests.engine.supervision.mortal import (
    FAST,
    Cradle,
    Mortal,
    ask,
    collect,
    following,
    tokens_of,
    until,
)
from tests.engine.supervision.test_supervisor import CONSTRAINT


async def test_a_bound_is_taken_at_once_whether_the_engine_is_there_or_away(supervise):
    cradle = Cradle(depth=3)
    engine, _ = await supervise(cradle)
    assert await engine.set_depth(2) == AppliedDepth(2)
    cradle.start_hangs = {1}
    cradle.lives[0].kill()
    await until(lambda: len(cradle.lives) == 2)
    async with asyncio.timeout(1):
        assert await engine.set_depth(1) == AppliedDepth(1, pending=True)
    cradle.lives[1].hangs.set()
    await until(lambda: cradle.lives[1].bounds == [1])


async def test_a_bound_that_an_engine_refuses_ends_no_later_engine(supervise):
    """The refusing engine is already lost, or serving, when the bound comes: its scheduler has
    none."""
    cradle = Cradle(depth=3)
    real = cradle.make

    def make():
        life = real()

        async def refuse(depth):
            raise ValueError("another scheduler")

        life.set_depth = refuse
        return life

    cradle.make = make
    engine, _ = await supervise(cradle)
    with pytest.raises(ValueError, match="another scheduler"):
        await engine.set_depth(2)
    cradle.start_hangs = {1}
    cradle.lives[0].kill()
    await until(lambda: len(cradle.lives) == 2)
    assert (await engine.set_depth(1)).pending
    cradle.lives[1].hangs.set()
    assert tokens_of(await collect(engine, ask())) == following(ask())


async def test_a_held_planner_is_held_in_the_next_engine(supervise):
    cradle = Cradle(depth=3)
    planner = HeldPlanner(cradle)
    engine, _ = await supervise(cradle)
    assert await engine.freeze_planning(2)
    assert (await engine.describe_planning(5))["recent"] == 5
    cradle.lives[0].kill()
    await until(lambda: planner.held == [(0, 2), (1, 2)])


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": Sampling(max_tokens=12, temperature=1.0, seed=4)},
        {"sampling": Sampling(max_tokens=12, temperature=1.0), "constraint": CONSTRAINT},
        {"sampling": Sampling(max_tokens=12, temperature=1.0)},
    ],
)
async def test_a_sampled_request_leaves_its_depth_to_every_engine(supervise, fields):
    """A seed's text is the same at every depth, so the planner is free."""
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2, depth=3)
    engine, _ = await supervise(cradle)
    async for _ in read_steps(engine.generate, structs.replace(ask(), **fields)):
        pass
    assert [life.requests[0].depth for life in cradle.lives] == [None, None]


async def test_a_bound_that_comes_while_a_new_engine_takes_another_counts(supervise):
    cradle = Cradle(depth=3)
    engine, notes = await supervise(cradle)
    await engine.set_depth(2)
    real = cradle.make

    def make():
        life = real()
        take = life.set_depth

        async def taking(depth):
            if not life.bounds:
                await engine.set_depth(1)
            return await take(depth)

        life.set_depth = taking
        return life

    engine.make = make
    cradle.lives[0].kill()
    await until(lambda: notes.back)
    assert cradle.lives[1].bounds == [2, 1]


async def test_a_bound_does_not_wait_for_an_engine_that_hangs(supervise, monkeypatch):
    monkeypatch.setattr("eaglegate.engine.supervision.supervisor.BOUND_S", 0.01)
    cradle = Cradle(depth=3)
    engine, _ = await supervise(cradle, replace(FAST, hang_s=60))
    cradle.lives[0].frozen.set()
    tasks = len(asyncio.all_tasks())
    assert await engine.set_depth(1) == AppliedDepth(1, pending=True)
    assert len(asyncio.all_tasks()) == tasks


class HeldPlanner:
    """Lives of engines that plan; what operators asked of each."""

    def __init__(self, cradle: Cradle) -> None:
        self.held: list[tuple[int, int | None]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self._cradle = cradle
        cradle.make = self.make

    def make(self):
        life = Planning(self._cradle, len(self._cradle.lives))
        life.planner = self
        self._cradle.lives.append(life)
        return life


class Planning(Mortal, SupportsPlanning):
    planner: HeldPlanner

    async def start(self):
        return replace(await super().start(), plans_depth=True)

    async def freeze_planning(self, depth):
        await self.planner.answers.wait()
        self.planner.held.append((self.number, depth))
        return True

    async def describe_planning(self, recent=0):
        await self.planner.answers.wait()
        return {"mode": "auto", "life": self.number, "frozen": None, "recent": recent}


async def test_a_planner_is_held_while_the_engine_is_away(supervise):
    """The last command counts: a planner that is let go before the next engine serves is not
    held."""
    cradle = Cradle(depth=3, start_hangs={1, 2})
    planner = HeldPlanner(cradle)
    engine, _ = await supervise(cradle)
    cradle.lives[0].kill()
    await until(lambda: len(cradle.lives) == 2)
    assert await engine.freeze_planning(2)
    cradle.lives[1].hangs.set()
    await until(lambda: planner.held == [(1, 2)])
    cradle.lives[1].kill()
    await until(lambda: len(cradle.lives) == 3)
    assert await engine.freeze_planning(None)
    cradle.lives[2].hangs.set()
    await collect(engine, ask())
    assert planner.held == [(1, 2)]


async def test_the_last_planner_answer_is_shown_while_the_engine_is_silent(supervise, monkeypatch):
    monkeypatch.setattr("eaglegate.engine.supervision.supervisor.BOUND_S", 0.01)
    cradle = Cradle(depth=3, start_hangs={1})
    planner = HeldPlanner(cradle)
    engine, _ = await supervise(cradle)
    assert "stale" not in await engine.describe_planning()
    planner.answers.clear()
    assert await engine.freeze_planning(1)
    shown = await engine.describe_planning()
    assert shown["stale"] == "The engine did not answer within 0.01 s."
    assert (shown["life"], shown["frozen"]) == (0, 1)
    cradle.lives[0].kill()
    await until(lambda: len(cradle.lives) == 2)
    shown = await engine.describe_planning()
    assert "being restarted" in shown["stale"]
    assert (shown["life"], shown["frozen"]) == (0, 1)
