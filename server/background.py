"""Responses that run without anybody listening, and the log of what they said."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from engine.errors import EngineError
from server.errors import GatewayError
from server.response import Batches, as_gateway_error
from server.wire.responses import ResponseStream

logger = logging.getLogger(__name__)

KEPT_RUNS = 256
"""Finished runs whose events can still be streamed; their responses are in the store."""

Keep = Callable[[], Awaitable[None]]
"""Writes the response as it is now to the store."""


class Run:
    """One response being made. ``frames`` grows; whoever follows waits on ``_grown``."""

    def __init__(self, owner: str, stream: ResponseStream, keep: Keep) -> None:
        self.owner = owner
        self.stream = stream
        self.frames: list[bytes] = []
        self.task: asyncio.Task[None] | None = None
        self._keep = keep
        self._grown = asyncio.Condition()
        self._over = False

    @property
    def ended(self) -> bool:
        return self.task is not None and self.task.done()

    def start(self, source: Batches) -> None:
        self.task = asyncio.create_task(self._run(source))

    async def follow(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The frames whose sequence number is above ``after``, as they come."""
        at = after + 1
        while True:
            await self._wait_for(at)
            if at >= len(self.frames):
                return
            yield self.frames[at]
            at += 1

    async def _wait_for(self, at: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: len(self.frames) > at or self._over)

    async def cancel(self) -> None:
        """Stop it, unless it has ended; the response says that it was cancelled."""
        if self.task is None or self.task.done():
            return
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self, source: Batches) -> None:
        stream = self.stream
        await self._say(stream.opening())
        last: list[bytes] = []
        try:
            async with aclosing(source) as batches:
                async for choice, events in batches:
                    await self._say(stream.frames(choice, events))
        except (GatewayError, EngineError) as error:
            last = stream.failing(as_gateway_error(error))
        except asyncio.CancelledError:
            stream.building.cancel()
        except Exception:
            logger.exception("a background response broke")
            last = stream.failing(GatewayError("The gateway failed; the answer is incomplete."))
        await self._keep()
        await self._say(last or [stream.close()], over=True)

    async def _say(self, frames: list[bytes], over: bool = False) -> None:
        async with self._grown:
            self.frames += frames
            self._over = over
            self._grown.notify_all()


class Runs:
    """The background responses of this process, by id."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, Run] = OrderedDict()

    def add(self, id: str, run: Run) -> None:
        self._runs[id] = run
        ended = [key for key, old in self._runs.items() if old.ended]
        for key in ended[: max(0, len(self._runs) - KEPT_RUNS)]:
            del self._runs[key]

    def get(self, id: str, owner: str) -> Run | None:
        run = self._runs.get(id)
        return run if run is not None and run.owner == owner else None

    def forget(self, id: str) -> None:
        self._runs.pop(id, None)
