"""Hold off depths of a draft that kill the engine.

A request that may have cost an engine runs again without drafts (``recovery.py``). Where it then
succeeds, its drafts are blamed for the death, once per engine. ``DEATHS`` deaths at one method and
depth within ``WINDOW_S`` hold that depth off: every request's depth is bounded to half of it until
an operator releases it. Halving finds a depth that works, or 0, after few deaths.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

DEATHS = 2
"""Engines that one (method, depth) may cost before it is held off."""
WINDOW_S = 86_400.0
"""Seconds within which the deaths must lie."""


@dataclass(frozen=True, slots=True)
class DraftHold:
    """A depth that is held off because it killed engines. ``at``: Unix time in seconds."""

    method: str
    depth: int
    bound: int
    """The greatest depth that requests get now."""
    at: float


class DraftBlame:
    """Counts engine deaths by the method and the depth of the drafts that caused them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._deaths: defaultdict[tuple[str, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=DEATHS)
        )
        self._holds: dict[tuple[str, int], DraftHold] = {}

    @property
    def holds(self) -> tuple[DraftHold, ...]:
        return tuple(self._holds.values())

    @property
    def bound(self) -> int | None:
        """The greatest depth that is not held off; None where nothing is."""
        return min((hold.bound for hold in self._holds.values()), default=None)

    def limit(self, depth: int | None) -> int | None:
        """The lesser of ``depth`` and ``bound``; None where neither bounds anything."""
        return min((one for one in (depth, self.bound) if one is not None), default=None)

    def add(self, method: str, depth: int) -> DraftHold | None:
        """Count the death of an engine; returns the hold where this one begins it."""
        key, now = (method, depth), self._clock()
        deaths = self._deaths[key]
        deaths.append(now)
        if key in self._holds or len(deaths) < DEATHS or deaths[0] < now - WINDOW_S:
            return None
        self._holds[key] = hold = DraftHold(method, depth, depth // 2, now)
        return hold

    def release(self) -> tuple[DraftHold, ...]:
        """Forget all deaths and holds; returns the holds that there were."""
        released = self.holds
        self._deaths.clear()
        self._holds.clear()
        return released
