"""Canary of one worker of a fleet, which has another draft or some other change."""

from __future__ import annotations

import logging
from typing import Any

from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.fleet.routing import find_owner
from eaglegate.engine.fleet.types import WorkerState, WorkerStatus
from eaglegate.engine.speculation.policy.policy import PolicyTrial, SpeculationPolicy
from eaglegate.engine.types import Arm
from eaglegate.features.canary.arms import (
    ArmsNow,
    CanaryChange,
    Collapsed,
    Interrupted,
    check_collapse,
    draw_arm,
)
from eaglegate.features.canary.outcomes import ChangeRefused

log = logging.getLogger(__name__)


class WorkerChange(CanaryChange):
    """Trial of one worker against the others, by session.

    The candidate's sessions are those that hash to it, so no session moves when the canary starts
    or succeeds. Requests without a session are assigned by their id, because the usual routing by
    load and cached prefixes would make the arms differ. A request counts for its assigned arm, even
    if a failure moved it to another worker.
    """

    kind = "worker"
    by_slots = False

    def __init__(
        self,
        worker: str,
        fleet: Fleet,
        policy: SpeculationPolicy,
    ) -> None:
        self._worker = worker
        self._fleet, self._policy = fleet, policy
        self._names: list[str] = []
        self._openings = 0

    @property
    def candidate(self) -> str:
        return self._worker

    @property
    def control(self) -> str:
        """The number of other workers when the canary began, in words."""
        return f"{len(self._names) - 1} other workers"

    async def start(self) -> None:
        """Begin the trial. Raises ChangeRefused."""
        workers = {status.name: status for status in self._fleet.list_status()}
        worker = workers.get(self.candidate)
        if worker is None:
            raise ChangeRefused(
                f"There is no worker {self.candidate!r}. Workers: {', '.join(workers) or 'none'}."
            )
        if worker.state not in (WorkerState.SERVING, WorkerState.HELD):
            raise ChangeRefused(f"The worker {worker.name} does not serve: it is {worker.state}.")
        other_workers = [
            name
            for name, status in workers.items()
            if status.state is WorkerState.SERVING and status is not worker
        ]
        if not other_workers:
            raise ChangeRefused("No other worker serves, so there is nothing to compare with.")
        self._names, self._openings = [worker.name, *other_workers], worker.openings
        self._fleet.reservations.candidate = worker.name
        self._fleet.reservations.held_names.discard(worker.name)
        self._policy.trial = PolicyTrial(self._draw)

    def _draw(self, unit: str) -> Arm:
        return draw_arm(find_owner(unit, self._names) == self.candidate)

    def check(self, arms: ArmsNow) -> None:
        """Raise Collapsed or Interrupted if the trial cannot continue."""
        status = self._find_status()
        if status is None or status.state is WorkerState.DRAINING:
            raise Interrupted("the worker was removed from the fleet")
        if status.state is not WorkerState.SERVING or status.openings > self._openings:
            reason = status.reason or "its circuit opened"
            raise Collapsed(f"the worker failed while it was tried: {reason}")
        check_collapse(arms)

    def _find_status(self) -> WorkerStatus | None:
        matches = (status for status in self._fleet.list_status() if status.name == self.candidate)
        return next(matches, None)

    async def promote(self) -> None:
        log.warning(
            "worker %s is better: apply its change to the other workers as well", self.candidate
        )

    async def roll_back(self) -> None:
        """Send new requests to the other workers until an operator releases the candidate."""
        self._fleet.reservations.held_names.add(self.candidate)
        log.warning("worker %s is held: it gets no new requests", self.candidate)

    async def leave(self) -> None:
        self._policy.trial = None
        self._fleet.reservations.candidate = None

    def describe(self) -> dict[str, Any]:
        return {"worker": self.candidate}
