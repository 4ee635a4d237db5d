from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.scripted import Pause, ScriptedEngine, steps
from eaglegate.engine.steps import push_steps, read_steps
from eaglegate.engine.types import EngineRequest, Sampling, Step

REQUEST = EngineRequest("r", (1, 2), Sampling(max_tokens=9))


class SlowClient:
    """A sink whose client reads one step, and the next one when it is told to."""

    def __init__(self) -> None:
        self.got: list[Step] = []
        self.reads = asyncio.Semaphore(0)
        self._pending = False

    def is_open(self) -> bool:
        return not self._pending

    def push(self, step: Step) -> None:
        self.got.append(step)
        self._pending = True

    async def drain(self) -> None:
        await self.reads.acquire()
        self._pending = False


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_engine_makes_no_step_while_a_slow_client_has_one_to_read() -> None:
    made: list[int] = []

    async def engine() -> AsyncGenerator[Step, None]:
        for at in range(5):
            made.append(at)
            yield Step((at,))

    client = SlowClient()
    running = asyncio.create_task(push_steps(engine(), client))
    for reads in range(1, 5):
        await settle()
        assert (len(client.got), len(made)) == (reads, reads)
        client.reads.release()
    await settle()
    assert not running.done()
    client.reads.release()
    await asyncio.wait_for(running, 5)
    assert [step.token_ids for step in client.got] == [(at,) for at in range(5)]


async def test_a_reader_gets_every_step_in_order_and_then_the_end() -> None:
    engine = ScriptedEngine(script := steps((1, 2, 3, 4, 5), cuts=(1, 2)))
    assert [step async for step in read_steps(engine.generate, REQUEST)] == script
    assert not engine.aborted


async def test_a_reader_that_leaves_aborts_its_request() -> None:
    engine = ScriptedEngine([*steps((1, 2), cuts=(1,))[:1], Pause(60)])
    reading = read_steps(engine.generate, REQUEST)
    assert (await anext(reading)).token_ids == (1,)
    await reading.aclose()
    assert engine.aborted == ["r"]
    assert not engine.running


async def test_a_reader_gets_the_engines_error_behind_its_steps() -> None:
    engine = ScriptedEngine([*steps((1, 2), cuts=(1,))[:1], EngineFailed("no")])
    reading = read_steps(engine.generate, REQUEST)
    assert (await anext(reading)).token_ids == (1,)
    with pytest.raises(EngineFailed, match="no"):
        await anext(reading)
