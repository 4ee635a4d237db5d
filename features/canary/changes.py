"""The changes that a canary can try."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.speculation.policy.policy import SpeculationPolicy, SpeculationRules
from eaglegate.engine.supervision.policy import EngineLoss
from eaglegate.features.canary.outcomes import ChangeRefused
from eaglegate.features.canary.promoted import PromotedRules

if TYPE_CHECKING:
    from eaglegate.engine.fleet.fleet import Fleet
    from eaglegate.features.canary.drafts import DraftChange
    from eaglegate.features.canary.rules import RulesChange
    from eaglegate.features.canary.workers import WorkerChange
    from eaglegate.observability.telemetry import Telemetry


@dataclass(slots=True)
class CanaryChanges:
    """Creates the changes that this gateway's canaries can try (``CanaryChange``): another draft,
    speculation rules or a worker. Each kind is loaded when it is tried.
    """

    traffic: Telemetry
    policy: SpeculationPolicy
    memory: PromotedRules
    losses: Callable[[], Iterable[EngineLoss]] = tuple
    drafts: DraftManager | None = None
    fleet: Fleet | None = None

    def try_draft(self, path: str) -> DraftChange:
        from eaglegate.features.canary.drafts import DraftChange

        assert self.drafts is not None
        return DraftChange(path, self.drafts, self.traffic)

    def try_rules(self, rules: SpeculationRules, share: float | None) -> RulesChange:
        from eaglegate.features.canary.rules import RulesChange

        return RulesChange(rules, self.policy, self.memory, share, self.losses)

    def try_worker(self, worker: str) -> WorkerChange:
        """Create a trial of a worker. Raises ChangeRefused."""
        fleet = self.require_fleet()
        from eaglegate.features.canary.workers import WorkerChange

        return WorkerChange(worker, fleet, self.policy)

    def release(self, worker: str) -> None:
        """Return a rolled-back worker to normal routing. Raises ChangeRefused."""
        workers = self.require_fleet().reservations.held_names
        if worker not in workers:
            raise ChangeRefused(
                f"The worker {worker!r} is not held. Held: {', '.join(sorted(workers)) or 'none'}."
            )
        workers.discard(worker)

    def require_fleet(self) -> Fleet:
        """Return the fleet. Raises ChangeRefused if there is none."""
        if self.fleet is None:
            raise ChangeRefused("This gateway has an engine of its own and no workers.")
        return self.fleet
