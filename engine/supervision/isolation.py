"""Poison request isolation: find the request that crashes engines among many running at the time.

A request that has made progress since it was submitted is not suspected. Each of the others gets a
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
    """One submission: on trial until it passes, by a step, or is over."""

    def __init__(self, probation: PoisonIsolation) -> None:
        self._probation = probation
        self.passed = False

    def passes(self) -> None:
        if not self.passed:
            self.passed = True
            self._probation.leave()


class PoisonIsolation:
    """Who may be submitted now. Proven requests (they have made a step) are of no concern."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._unproven = 0
        self._waiting: list[tuple[int, int]] = []
        """Those who wait to be alone: their strikes and submissions."""
        self._alone = False

    @asynccontextmanager
    async def trial(self, *, strikes: int, submissions: int = 0) -> AsyncIterator[PendingStart]:
        """``strikes``: engines lost in a row without a step; ``submissions``: all there were."""
        await self.enter(strikes, submissions)
        trial = PendingStart(self)
        try:
            yield trial
        finally:
            if not trial.passed:
                self.leave()

    async def enter(self, strikes: int, submissions: int) -> None:
        if not strikes:
            while self._alone or self._waiting:
                await self._changed.wait()
        else:
            await self._until_nobody_else((strikes, submissions))
        self._alone = strikes > 0
        self._unproven += 1

    def leave(self) -> None:
        """The request has made a step, or is over."""
        self._unproven -= 1
        self._alone = False
        self._tell()

    async def _until_nobody_else(self, rank: tuple[int, int]) -> None:
        self._waiting.append(rank)
        try:
            while self._unproven or rank > min(self._waiting):
                await self._changed.wait()
        finally:
            self._waiting.remove(rank)
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
