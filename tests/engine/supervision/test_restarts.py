"""Replacement of engines, and its limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from eaglegate.engine.errors import EngineDead, EngineStartError
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.policy import LossCause
from tests.engine.supervision.mortal import (
    FAST,
    Cradle,
    ask,
    collect,
    following,
    supervised,
    tokens_of,
    until,
)


async def test_an_engine_that_hangs_is_replaced_and_its_requests_go_on(supervise):
    engine, notes = await supervise(cradle := Cradle())
    request = ask(tokens=30)
    steps = read_steps(engine.generate, request)
    got = [await anext(steps)]
    cradle.lives[0].frozen.set()
    async with asyncio.timeout(5):
        await cradle.lives[0].died.wait()
    got += [step async for step in steps]
    assert tokens_of(got) == following(request)
    assert notes.lost == [LossCause.HUNG]


async def test_an_engine_that_answers_but_makes_no_steps_has_hung(supervise):
    from eaglegate.engine.scripted import Pause

    engine, notes = await supervise(cradle := Cradle(), replace(FAST, stall_s=0.03))
    cradle.lives[0].script = [Pause(0.2), *cradle.lives[0].play(ask())]
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.HUNG]


async def test_a_crash_loop_ends_and_says_why(supervise):
    cradle = Cradle(start_fails={1, 2, 3, 4, 5})
    engine, notes = await supervise(cradle, replace(FAST, max_failures=3))
    cradle.lives[0].kill()
    with pytest.raises(EngineDead, match=r"lost 4 times in a row.*no memory left"):
        await collect(engine, ask())
    assert "no memory left" in await engine.wait_failed()
    assert notes.lost == [LossCause.DIED, LossCause.START, LossCause.START, LossCause.START]
    health = await engine.health()
    assert not health.live
    assert "no memory left" in health.reason


async def test_a_start_that_never_ends_is_a_failed_one(supervise):
    cradle = Cradle(start_hangs={1})
    engine, notes = await supervise(cradle, replace(FAST, start_s=0.01))
    cradle.lives[0].kill()
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.DIED, LossCause.START]
    await engine.aclose()
    cradle.start_hangs = {3}
    engine, _ = supervised(cradle, replace(FAST, start_s=0.01))
    with pytest.raises(EngineStartError, match=r"not ready after 0.01 s.*--engine-start-s"):
        await engine.start()


async def test_a_long_life_wipes_out_earlier_failures(supervise):
    cradle = Cradle()
    engine, notes = await supervise(cradle, replace(FAST, max_failures=2, stable_s=0.0))
    for deaths in range(5):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    assert (await engine.health()).live


async def test_health_tells_of_a_restart(supervise):
    cradle = Cradle()
    engine, _ = await supervise(cradle)
    gate = asyncio.Event()
    real = cradle.make

    def slow():
        life = real()
        start = life.start

        async def late():
            await gate.wait()
            return await start()

        life.start = late
        return life

    engine.make = slow
    cradle.lives[0].kill()
    await cradle.lives[0].died.wait()
    await until(lambda: len(cradle.lives) == 2)
    assert "being restarted (died: killed)" in (await engine.health()).reason
    gate.set()
    assert tokens_of(await collect(engine, ask())) == following(ask())


async def test_a_consumer_that_leaves_aborts_the_engine_request(supervise):
    engine, _ = await supervise(cradle := Cradle())
    steps = read_steps(engine.generate, ask(tokens=100))
    await anext(steps)
    await steps.aclose()
    assert cradle.lives[0].aborted == ["r"]
    assert not cradle.lives[0].running


async def test_after_closing_there_is_nothing_to_wait_for(supervise):
    engine, _ = await supervise(Cradle())
    await engine.aclose()
    with pytest.raises(EngineDead, match="closed"):
        await collect(engine, ask())


async def test_an_engine_whose_end_cannot_be_examined_is_replaced(supervise):
    engine, notes = await supervise(cradle := Cradle())

    async def fail():
        raise OSError("no file left")

    cradle.lives[0].post_mortem = fail
    cradle.lives[0].kill()
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.back == 1
    assert [loss.reason for loss in engine.losses] == ["killed"]


@pytest.mark.parametrize("where", ["start", "set_depth"])
async def test_closing_during_a_restart_leaves_no_engine(supervise, where):
    """No engine is left that is starting, or has started and does not serve yet."""
    cradle = Cradle(depth=3, start_hangs={1} if where == "start" else set())
    engine, _ = await supervise(cradle)
    await engine.set_depth(2)
    reached, real = asyncio.Event(), engine.make

    def make():
        life = real()

        async def wait_for_ever(_depth):
            reached.set()
            await asyncio.Event().wait()

        if where == "set_depth":
            life.set_depth = wait_for_ever
        else:
            reached.set()
        return life

    engine.make = make
    cradle.lives[0].kill()
    await reached.wait()
    await asyncio.sleep(0)
    await engine.aclose()
    assert len(cradle.lives) == 2
    assert all(life.closed.is_set() for life in cradle.lives)


async def test_a_first_start_that_is_given_up_leaves_no_engine():
    cradle = Cradle(start_hangs={0})
    engine, _ = supervised(cradle)
    starting = asyncio.create_task(engine.start())
    await until(lambda: cradle.lives)
    starting.cancel()
    await asyncio.wait({starting})
    assert cradle.lives[0].closed.is_set()
