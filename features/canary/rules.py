"""Canary of other speculation rules."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eaglegate.engine.speculation.policy.policy import (
    PolicyTrial,
    SpeculationPolicy,
    SpeculationRules,
    draw_position,
)
from eaglegate.engine.supervision.policy import EngineLoss
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
from eaglegate.features.canary.promoted import PromotedRules, describe_rules

if TYPE_CHECKING:
    from eaglegate.observability.observation import RequestRecord


class RulesChange(CanaryChange):
    """Trial of other speculation rules: for all requests in slots, or for a share of the sessions.

    A request has the rules of its arm at arrival. If it outlasts its slot, only its ending counts.
    A request with a depth of its own belongs to neither arm.
    """

    kind = "speculation"

    def __init__(
        self,
        rules: SpeculationRules,
        policy: SpeculationPolicy,
        memory: PromotedRules,
        share: float | None = None,
        losses: Callable[[], Iterable[EngineLoss]] = tuple,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.by_slots = share is None
        self._policy, self._memory, self._share = policy, memory, share
        self._control = policy.rules
        self._candidate = replace(rules, key_depths=policy.rules.key_depths)
        self._losses, self._clock = losses, clock
        self._last_loss: EngineLoss | None = None
        self._slot: Arm | None = None
        self._slot_at = -1.0
        """Start of the current slot."""

    @property
    def control(self) -> str:
        return json.dumps(describe_rules(self._control))

    @property
    def candidate(self) -> str:
        return json.dumps(describe_rules(self._candidate))

    async def start(self) -> None:
        """Begin the trial. Raises ChangeRefused."""
        if self._candidate == self._control:
            raise ChangeRefused("The candidate's rules are the rules in force.")
        self._last_loss = find_last(self._losses())
        if self._share is not None:
            salt, share = secrets.token_hex(8), self._share
            self._policy.trial = PolicyTrial(
                lambda unit: draw_arm(draw_position(salt, unit) < share), self._candidate
            )

    async def enter(self, arm: Arm) -> None:
        """Begin a slot of this arm. Raises Interrupted."""
        self._check_rules()
        self._policy.trial = PolicyTrial(lambda _: arm, self._candidate)
        self._slot, self._slot_at = arm, self._clock()
        self._last_loss = find_last(self._losses())

    def find_arm(self, record: RequestRecord) -> Arm | None:
        """Return the request's arm; None if it was queued before this slot and may have the
        previous slot's rules.
        """
        facts = record.facts
        if self.by_slots and (facts.arm is not self._slot or facts.admitted < self._slot_at):
            return None
        return facts.arm

    def check(self, arms: ArmsNow) -> None:
        """Raise Collapsed or Interrupted if the trial cannot continue."""
        self._check_rules()
        if find_last(self._losses()) is not self._last_loss:
            raise Collapsed("an engine was lost while the candidate served")
        check_collapse(arms)

    def _check_rules(self) -> None:
        if self._policy.rules != self._control:
            raise Interrupted("the speculation rules were changed during the trial")

    async def promote(self) -> None:
        self._policy.rules = self._candidate
        self._memory.remember(self._candidate)

    async def leave(self) -> None:
        self._policy.trial = None

    def describe(self) -> dict[str, Any]:
        return {"speculation": describe_rules(self._candidate), "share": self._share}


def find_last(losses: Iterable[EngineLoss]) -> EngineLoss | None:
    return next(reversed(tuple(losses)), None)
