"""Runs the canaries of a gateway, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eaglegate.features.canary.changes import CanaryChanges
from eaglegate.features.canary.outcomes import FAILED, STOPPED, CanaryBusy, CanaryVerdict

if TYPE_CHECKING:
    from eaglegate.features.canary.arms import CanaryChange
    from eaglegate.features.canary.canary import Canary, CanaryPlan
    from eaglegate.features.canary.sequential import CanaryFindings

log = logging.getLogger(__name__)


class CanaryRunner:
    """Runs one canary at a time and keeps the last one for operators."""

    def __init__(self, changes: CanaryChanges) -> None:
        self.changes = changes
        self._task: asyncio.Task[CanaryFindings] | None = None
        self._starting = False
        self.last: Canary | None = None
        self.verdicts = dict.fromkeys((*CanaryVerdict, STOPPED, FAILED), 0)
        """Number of canaries by outcome. All outcomes start at 0, because Prometheus sees no
        increase when a series first appears.
        """

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self, change: CanaryChange, plan: CanaryPlan) -> Canary:
        """Start a canary.

        Raises CanaryBusy, ChangeRefused, DraftRefused, DraftSwapBusy and EngineError.
        """
        if self.running or self._starting:
            raise CanaryBusy("Another canary is running; stop it, or wait for its verdict.")
        # Imported with the first canary.
        from eaglegate.features.canary.canary import Canary

        canary = Canary(plan, change, self.changes.traffic)
        self._starting = True
        try:
            await canary.start()
        finally:
            self._starting = False
        self.last = canary
        self._task = asyncio.create_task(canary.run())
        self._task.add_done_callback(self._count)
        return canary

    def _count(self, task: asyncio.Task[CanaryFindings]) -> None:
        if task.cancelled():
            verdict = STOPPED
        elif error := task.exception():
            log.error("canary failed", exc_info=error)
            verdict = FAILED
        else:
            verdict = task.result().verdict.value
        self.verdicts[verdict] += 1

    async def stop(self) -> None:
        """End the canary without a verdict; the control serves again."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
            if self.last is not None:  # a cancelled task that never ran did not end the trial
                await self.last.change.leave()

    def describe(self) -> dict[str, Any] | None:
        """Describe the running canary, or the last one; None before the first."""
        if self.last is None:
            return None
        return {**self.last.describe(), "running": self.running}

    def list_headlines(self) -> Iterator[str]:
        """Describe the running canary, or the last one, in a few words."""
        canary = self.describe()
        if canary is not None:
            state = "running" if canary["running"] else canary["verdict"] or "stopped"
            yield f"canary {canary['candidate']}: {state}, {canary['blocks']} blocks"
