"""Holds on draft depths that kill the engine.

A request that may have cost an engine runs again without drafts (``recovery.py``). If it then
succeeds, its drafts are blamed for the death, once per engine, unless another request explains the
death (``DeathInquiry``). ``DEATHS`` deaths at one method and depth within ``WINDOW_S`` hold that
depth: every request's depth is bounded to half of it until an operator releases it. Halving finds a
depth that works, or 0, after few deaths.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

DEATHS = 2
"""Number of engine deaths at one method and depth that hold the depth."""
WINDOW_S = 86_400.0
"""Time within which the deaths must occur, in seconds."""


@dataclass(frozen=True, slots=True)
class DraftHold:
    """A depth that is not used because it killed engines. ``at`` is Unix time in seconds."""

    method: str
    depth: int
    bound: int
    """Greatest depth that requests get during the hold."""
    at: float


class DeathInquiry:
    """Inquiry into the death of one engine, by its drafts or by a request.

    Requests without a step when the engine died are suspects. Each runs again alone and without
    drafts. A suspect that then kills another engine explains the first death as well, and what
    other requests prove against the drafts no longer counts. Drafts are blamed once no suspect is
    left. A suspect that leaves before it has run again no longer delays the blame, because a draft
    that kills engines costs more than a hold without cause.
    """

    def __init__(self) -> None:
        self._suspects: set[object] = set()
        self._blame: Callable[[], None] | None = None
        self._is_settled = False

    def add_suspect(self, request: object) -> None:
        self._suspects.add(request)

    def clear(self, request: object) -> None:
        """Clear a suspect that has made a step without drafts, or has left."""
        self._suspects.discard(request)
        self._settle()

    def convict(self) -> None:
        """Record that a request of the dead engine also kills engines without drafts."""
        self._is_settled = True

    def blame_drafts(self, blame: Callable[[], None]) -> None:
        """Record proof that drafts killed the engine. ``blame`` is called at most once."""
        self._blame = self._blame or blame
        self._settle()

    def _settle(self) -> None:
        if self._blame is not None and not self._suspects and not self._is_settled:
            self._is_settled = True
            self._blame()


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
        """Greatest depth that no hold forbids; None without a hold."""
        return min((hold.bound for hold in self._holds.values()), default=None)

    def limit(self, depth: int | None) -> int | None:
        """Return the smaller of ``depth`` and ``bound``; None if both are None."""
        return min((bound for bound in (depth, self.bound) if bound is not None), default=None)

    def add(self, method: str, depth: int) -> DraftHold | None:
        """Count the death of an engine. Return the new hold if this death causes one."""
        key, now = (method, depth), self._clock()
        deaths = self._deaths[key]
        deaths.append(now)
        if key in self._holds or len(deaths) < DEATHS or deaths[0] < now - WINDOW_S:
            return None
        self._holds[key] = hold = DraftHold(method, depth, depth // 2, now)
        return hold

    def release(self) -> tuple[DraftHold, ...]:
        """Forget all deaths and holds, and return the holds."""
        holds = self.holds
        self._deaths.clear()
        self._holds.clear()
        return holds
