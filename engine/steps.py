"""Adapters for both ends of the path of steps: engines that yield and readers that iterate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from eaglegate.engine.types import EngineRequest, Step, StepSink

Generate = Callable[[EngineRequest, StepSink], Coroutine[Any, Any, None]]
"""Signature of ``Engine.generate``."""


async def put(step: Step, sink: StepSink) -> None:
    """Push one step, and wait if the client does not keep up."""
    sink.push(step)
    if not sink.is_open():
        await sink.drain()


async def push_steps(steps: AsyncGenerator[Step, None], sink: StepSink) -> None:
    """Push every step of the generator, and close it at the end."""
    async with aclosing(steps):
        async for step in steps:
            await put(step, sink)


async def read_steps(generate: Generate, request: EngineRequest) -> AsyncGenerator[Step, None]:
    """Yield the steps of ``generate``. Closing the generator aborts the request."""
    steps = _StepBuffer()
    task = asyncio.create_task(generate(request, steps))
    task.add_done_callback(steps.end)
    try:
        while (step := await steps.get()) is not None:
            yield step
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})


class _StepBuffer:
    """A sink that is open while its reader waits for a step."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Step | None] = asyncio.Queue()
        self._wanted = asyncio.Event()

    def is_open(self) -> bool:
        return self._wanted.is_set()

    def push(self, step: Step) -> None:
        self._wanted.clear()
        self._queue.put_nowait(step)

    async def drain(self) -> None:
        await self._wanted.wait()

    def end(self, _: object) -> None:
        self._queue.put_nowait(None)

    async def get(self) -> Step | None:
        """Wait for the next step; None at the end."""
        self._wanted.set()
        return await self._queue.get()


class NullSink:
    """A sink that keeps nothing."""

    def is_open(self) -> bool:
        return True

    def push(self, step: Step) -> None: ...

    async def drain(self) -> None: ...
