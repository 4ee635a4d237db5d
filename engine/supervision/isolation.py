"""Poison request isolation: find the request that crashes engines among many running at the time.

A request that has made a step since it was submitted is not suspected. Each of the others gets a
strike and is submitted again *alone*: no other request is between submission and first step. Those
with the fewest strikes go first, so that chance does not hit the same request twice. An engine that
dies then was killed by that request. A signal from outside must hit a request alone several times:
a request that makes the kernel run out of memory is found, and one that was running when an
operator killed the engine is not punished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class PendingStart:
    """A submission that has not made its first step; ``confirm`` it with that step."""

    def __init__(self, isolation: PoisonIsolation) -> None:
        self._isolation = isolation
        self.started = False

    def confirm(self) -> None:
        if not self.started:
            self.started = True
            self._isolation.leave()


class PoisonIsolation:
    """Decides which request may be submitted now. Requests that have made a step do not count."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._pending = 0
        self._waiting: list[tuple[int, int]] = []
        """Requests waiting to be alone: their strikes and submissions."""
        self._alone = False

    @asynccontextmanager
    async def admit(self, *, strikes: int, submissions: int = 0) -> AsyncIterator[PendingStart]:
        """``strikes``: engines lost in a row without a step; ``submissions``: all there were."""
        await self.enter(strikes, submissions)
        pending = PendingStart(self)
        try:
            yield pending
        finally:
            if not pending.started:
                self.leave()

    async def enter(self, strikes: int, submissions: int) -> None:
        if not strikes:
            while self._alone or self._waiting:
                await self._changed.wait()
        else:
            await self._wait_alone((strikes, submissions))
        self._alone = strikes > 0
        self._pending += 1

    def leave(self) -> None:
        """The request has made its first step, or has ended."""
        self._pending -= 1
        self._alone = False
        self._notify()

    async def _wait_alone(self, rank: tuple[int, int]) -> None:
        self._waiting.append(rank)
        try:
            while self._pending or rank > min(self._waiting):
                await self._changed.wait()
        finally:
            self._waiting.remove(rank)
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
