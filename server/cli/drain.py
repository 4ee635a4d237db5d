"""Leaving without losing anything: no new work, time for what runs, then a clean error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from server.access.admission import Admission
from server.apis.shared.gateway import Gateway
from server.errors import Unavailable

log = logging.getLogger(__name__)

LAST_WORDS_S = 5.0
"""How long cut streams may take to send their error frame."""


class Drain:
    """``cut`` ends what the engine still runs; ``hurry`` ends the grace early."""

    def __init__(
        self,
        gateway: Gateway,
        admission: Admission,
        grace_s: float,
        cut: Callable[[], Awaitable[None]],
    ) -> None:
        self._gateway = gateway
        self._admission = admission
        self._grace_s = grace_s
        self._cut = cut
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Wait no longer."""
        self._hurry.set()

    async def run(self) -> int:
        """How many requests were lost."""
        self._gateway.stop()
        inside = self._admission.num_inside
        if inside:
            log.warning("draining: %d requests have up to %g s", inside, self._grace_s)
        await _first(self._grace_s, self._admission.until_empty(), self._hurry.wait())
        lost = self._admission.num_inside
        if lost:
            self._admission.turn_away(
                Unavailable("The gateway is shutting down; try again.", retry_after_s=5)
            )
            await self._cut()
            await _first(LAST_WORDS_S, self._admission.until_empty())
        return lost


async def _first(timeout_s: float, *waits: Awaitable[object]) -> None:
    """Until one of ``waits`` is over, or time is."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
