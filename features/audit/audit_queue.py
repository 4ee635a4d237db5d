"""The queue, the pace and the budget of the audits in one engine.

An engine in this process has one queue. Of a fleet, each worker that scores answers has its own, so
that audits of one worker neither wait for another one nor use up its time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from eaglegate.engine.speculation.accounts.rounding import HALF_TIE
from eaglegate.engine.speculation.accounts.scores import AuditPace, ScoresAnswers
from eaglegate.engine.speculation.policy.time_budget import TimeBudget
from eaglegate.features.audit.records import FinishedAnswer

BUDGET = 0.01
"""Share of the engine's time that audits may take."""
SAVED_S = 10.0
"""Most seconds of the budget that are saved for use while the engine is idle."""
SAVED_BUSY_S = 0.5
"""Most seconds of the budget that are saved for use while requests run. Audits then slow them by at
most ``BUDGET``."""
PATIENCE_S = 30.0
"""Seconds after which an answer, or a piece of its audit, is dropped if it finds no room."""
IDLE_S = 5.0
"""Seconds that a piece of an audit waits for an idle engine before it runs together with
requests."""
POLL_S = 0.05
QUEUE = 32
"""Most answers that wait for their audit."""
DEATHS = 2
"""Losses of the engine during audits after which its audits stop."""


class NoRoom(Exception):
    """A piece of an audit found no room in the engine in time."""


@dataclass(eq=False)
class AuditQueue(AuditPace):
    """Audits of one engine, one at a time. ``has_room`` tells if it could take an audit now, and
    ``is_idle`` if it runs no request."""

    engine: ScoresAnswers
    has_room: Callable[[], bool]
    is_idle: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    dtype: str = ""
    """The data type of the engine's model."""
    tie: float = HALF_TIE
    """Greatest margin that rounding explains, in nats."""
    name: str = ""
    """The worker that scores; empty for the engine in this process."""
    waiting: deque[FinishedAnswer] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    """Audits the waiting answers; None or done if none waits."""
    took_s: float = 0.0
    """Seconds of the engine's time that the current audit has taken."""
    deaths: int = 0
    """Losses of the engine in a row, during audits."""

    def __post_init__(self) -> None:
        self._budget = TimeBudget(BUDGET, SAVED_S, self.clock, SAVED_S / 10)
        self._busy_budget = TimeBudget(BUDGET, SAVED_BUSY_S, self.clock, 0.0)

    @property
    def is_closed(self) -> bool:
        return self.deaths >= DEATHS

    @property
    def share_spent(self) -> float:
        """Share of the engine's time that audits took."""
        return self._budget.share_spent

    async def wait_for_room(self, start: float) -> bool:
        """Wait for room; return False if there was none within the patience that began at
        ``start``."""
        # Patience is for the answer, from its end on: it expires in the queue as well. The wait for
        # an idle engine begins with each piece anew. After it a piece runs beside requests, if a
        # second budget pays, too: it saves little, so that a quiet hour pays for no burst.
        wait_start = self.clock()
        while (now := self.clock()) - start < PATIENCE_S:
            is_patient = now - wait_start >= IDLE_S
            may_run_beside = is_patient and self._busy_budget.has_time() and self.has_room()
            if self._budget.has_time() and (self.is_idle() or may_run_beside):
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def pause(self) -> None:
        """Wait for room between two pieces of an audit. Raises NoRoom."""
        if not await self.wait_for_room(self.clock()):
            raise NoRoom

    def charge(self, seconds: float) -> None:
        self.took_s += seconds
        self._budget.spend(seconds)
        self._busy_budget.spend(seconds)
