"""Canary of another draft."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eaglegate.engine.errors import DraftRefused, DraftSwapBusy, EngineDead, EngineError
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.speculation.drafts.versions import DraftVersion
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Arm
from eaglegate.features.canary.arms import (
    ArmsNow,
    ArmSums,
    CanaryChange,
    Collapsed,
    Interrupted,
)

if TYPE_CHECKING:
    from eaglegate.observability.observation import RequestRecord
    from eaglegate.observability.telemetry import Telemetry

log = logging.getLogger(__name__)

LEAST_ACCEPTANCE = 0.5
"""Least accepted tokens per verify step, as a share of the promoted draft's."""
LEAST_STEPS = 50
"""Verify steps that each draft needs before acceptance is judged."""
NO_LONGER_SERVES = "the candidate no longer serves: the engine restarted or an operator intervened"


class DraftChange(CanaryChange):
    """Trial of another draft. An engine has one draft at a time, so the arms alternate in slots."""

    kind = "draft"
    by_slots = True

    def __init__(
        self,
        path: str,
        drafts: DraftManager,
        traffic: Telemetry,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = path
        self.version: DraftVersion | None = None
        self._promoted: DraftVersion | None = None
        self._drafts, self._traffic = drafts, traffic
        self._clock = clock
        self._slots: list[tuple[float, Arm]] = []
        """Start time and arm of each slot."""
        self._began = Totals()
        """The candidate's steps before this canary."""
        self._slot = Totals()
        """The candidate's steps before the current slot."""
        self._arm = Arm.CONTROL
        """The arm that should be serving, unless the engine restarted."""

    @property
    def control(self) -> str:
        return "" if self._promoted is None else self._promoted.fingerprint

    @property
    def candidate(self) -> str:
        return "" if self.version is None else self.version.fingerprint

    async def start(self) -> None:
        """Load the candidate for the first time. Raises DraftRefused, EngineError and others."""
        self._promoted = self._drafts.promoted
        await self._drafts.swap(self.path, trial=True)
        self.version = self._drafts.serving
        self._began = self._traffic.total_of(self.candidate)
        if not self._drafts.in_trial:
            raise DraftRefused("The candidate is the promoted draft itself.")
        self._arm = Arm.CANDIDATE

    async def enter(self, arm: Arm) -> None:
        """Switch to the draft of this arm.

        Raises Interrupted, or Collapsed if the engine was lost while the candidate served.
        """
        version = self._drafts.serving
        if version is None or version.fingerprint not in (self.control, self.candidate):
            raise Interrupted("a draft could not be exchanged: another draft has been loaded")
        assert self.version is not None
        if self._arm is Arm.CANDIDATE and version.fingerprint != self.candidate:
            raise Collapsed(NO_LONGER_SERVES)
        try:
            if arm is Arm.CANDIDATE:
                await self._drafts.try_again(self.version)
            elif self._drafts.in_trial:
                await self._drafts.rollback()
        except (EngineError, DraftRefused, DraftSwapBusy) as error:
            if self._arm is Arm.CANDIDATE and isinstance(error, EngineDead):
                raise Collapsed(NO_LONGER_SERVES) from error
            raise Interrupted(f"a draft could not be exchanged: {error}") from error
        self._arm = arm
        self._slots.append((self._clock(), arm))
        self._slot = self._traffic.total_of(self.candidate)

    def find_arm(self, record: RequestRecord) -> Arm | None:
        """Return the request's arm; None if the draft was swapped during the request."""
        return self.find_start(record) if len(record.drafts) == 1 else None

    def find_start(self, record: RequestRecord) -> Arm | None:
        """Return the arm of the request's first draft, or of the slot in which it was admitted if
        it failed before a draft served it.
        """
        if record.drafts:
            arms = {self.control: Arm.CONTROL, self.candidate: Arm.CANDIDATE}
            return arms.get(record.drafts[0])
        admitted_at = record.facts.admitted
        return next((arm for start, arm in reversed(self._slots) if start <= admitted_at), None)

    def check(self, arms: ArmsNow) -> None:
        """Raise Collapsed if the candidate no longer serves or its acceptance collapsed."""
        version = self._drafts.serving
        if version is None or version.fingerprint != self.candidate:
            raise Collapsed(NO_LONGER_SERVES)
        traffic, control = (self._traffic.total_of(name) for name in (self.candidate, self.control))
        steps = traffic.verify_steps - self._slot.verify_steps
        if min(steps, control.verify_steps) < LEAST_STEPS:
            return
        candidate_rate = (traffic.accepted - self._slot.accepted) / steps
        control_rate = control.accepted / control.verify_steps
        min_rate = LEAST_ACCEPTANCE * control_rate
        if candidate_rate < min_rate and all(
            _accepts_less(subset.candidate, min_rate) for subset in arms.others
        ):
            raise Collapsed(
                f"acceptance collapsed: {candidate_rate:.2f} accepted tokens per verify step, "
                f"{control_rate:.2f} with the promoted draft"
            )

    async def promote(self) -> None:
        assert self.version is not None
        await self._drafts.promote(self.version)

    async def leave(self) -> None:
        await self._drafts.wait_idle()
        if not self._drafts.in_trial:
            return
        try:
            await self._drafts.rollback()
        except (EngineError, DraftRefused, DraftSwapBusy) as error:
            log.error("the candidate could not be rolled back: %s", error)

    def describe(self) -> dict[str, Any]:
        return {"path": self.path}

    def measure_cost(self) -> dict[str, float]:
        """Return the trial's verify steps, and the number of them beyond the control's rate."""
        candidate, control = (
            self._traffic.total_of(name) for name in (self.candidate, self.control)
        )
        steps = candidate.verify_steps - self._began.verify_steps
        tokens = steps + candidate.accepted - self._began.accepted
        expected_steps = (
            tokens * control.verify_steps / ((control.verify_steps + control.accepted) or 1)
        )
        extra = round(steps - expected_steps, 1) if control.verify_steps else 0.0
        return {"tokens": tokens, "verify_steps": steps, "extra_steps": extra}


def _accepts_less(sums: ArmSums, limit: float) -> bool:
    """Return True if fewer tokens than ``limit`` were accepted per verify step."""
    return sums.verify_steps > 0 and sums.accepted < limit * sums.verify_steps
