"""A canary: part of the live traffic is served with a change until a verdict is reached.

The change (``changes.py``) stays on trial: if the engine or the gateway restarts, it serves what
served before. A change of the whole engine, such as its draft, is served in randomly chosen *slots*
of time that alternate with the control (``sequential.py``). A change of single requests can be
served to randomly drawn *sessions* at the same time as the control.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from eaglegate.engine.events import Ending
from eaglegate.engine.types import Arm
from eaglegate.features.canary.arms import (
    FAILURES,
    ArmsNow,
    ArmSums,
    CanaryChange,
    Collapsed,
    Interrupted,
    measure_ending,
    measure_request,
)
from eaglegate.features.canary.effects import describe_effect
from eaglegate.features.canary.keyed_test import TOKENS, KeyedTest, differ_in_load
from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.canary.sequential import (
    CanaryFindings,
    CanaryRules,
    CanaryTest,
    SlotPair,
)
from eaglegate.observability.facts import RequestEnded

if TYPE_CHECKING:
    from eaglegate.observability.telemetry import Telemetry

log = logging.getLogger(__name__)

Values = dict[str, dict[Hashable, list[float]]]


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Settings of a trial."""

    slot_s: float = 30.0
    """Seconds of a slot. A block is two slots long, even if the arms serve at the same time."""
    watch_s: float = 1.0
    """Seconds between two collapse checks of a serving candidate."""
    rules: CanaryRules = field(default_factory=CanaryRules)

    @staticmethod
    def count_blocks(slot_s: float, max_s: float) -> int:
        """Return the number of blocks that fit into ``max_s`` seconds, at least one."""
        return max(1, int(max_s / (2 * slot_s)))


class Canary:
    """One trial of one candidate."""

    def __init__(
        self,
        plan: CanaryPlan,
        change: CanaryChange,
        traffic: Telemetry,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draws: random.Random | None = None,
    ) -> None:
        self.plan = plan
        self.change = change
        self.findings: CanaryFindings | None = None
        self.started_at = time.time()
        self._traffic, self._sleep = traffic, sleep
        self._draws = draws or random.Random()
        self._test = KeyedTest(CanaryTest(plan.rules, concurrent=not change.by_slots))
        self._values: dict[Arm, Values] = {arm: {} for arm in Arm}
        self._sums = {arm: ArmSums() for arm in Arm}
        self._watched = ArmSums()
        """The candidate's sums in the current block."""
        self._by_key: dict[str | None, tuple[ArmSums, ArmSums]] = {}
        """The part of each API key in the control's sums and in the current block's."""
        self._block = 0
        self._began: dict[Hashable, int] = {}
        """The block in which each session began, if arms are drawn by session."""
        self._failed_late: set[Hashable] = set()
        """Sessions with a failure counted after their own block. Each session counts once."""
        self._served_s = 0.0
        """Seconds during which the candidate has served."""

    async def start(self) -> None:
        """Check and start the change. See ``CanaryChange.start``."""
        await self.change.start()

    async def run(self) -> CanaryFindings:
        """Serve blocks until there is a verdict, then promote the candidate or roll it back."""
        unsubscribe = self._traffic.facts.subscribe(RequestEnded, self._record)
        try:
            self.findings = await self._decide()
            await self._conclude(self.findings.verdict)
        finally:
            unsubscribe()
            await self.change.leave()
        summary = self.describe()
        log.warning(
            "canary ended: %s: %s%s",
            self.findings.verdict,
            self.findings.reason,
            "".join(f"; {row['text']}" for row in summary["evidence"][:1]),
            extra={"fields": {"canary": summary}},
        )
        return self.findings

    async def _decide(self) -> CanaryFindings:
        findings = self._test.judge()
        try:
            while not findings.ended:
                await asyncio.to_thread(self._test.add, await self._run_block())
                self.findings = findings = await asyncio.to_thread(self._test.judge)
        except Collapsed as error:
            log.warning("rolling back the canary at once: %s", error)
            return replace(findings, verdict=CanaryVerdict.ROLL_BACK, reason=str(error), ended=True)
        except Interrupted as error:
            return replace(findings, verdict=CanaryVerdict.UNDECIDED, reason=str(error), ended=True)
        return findings

    async def _run_block(self) -> SlotPair:
        self._block += 1
        self._watched = ArmSums()
        self._by_key = {key: (control, ArmSums()) for key, (control, _) in self._by_key.items()}
        if self.change.by_slots:
            arms = list(Arm)
            self._draws.shuffle(arms)
            for arm in arms:
                await self.change.enter(arm)
                await self._serve(self.plan.slot_s, arm is Arm.CANDIDATE)
        else:
            await self._serve(2 * self.plan.slot_s, is_watched=True)
        # A new dict for late requests: the test reads these in another thread.
        values, self._values = self._values, {arm: {} for arm in Arm}
        return SlotPair(values[Arm.CONTROL], values[Arm.CANDIDATE])

    async def _serve(self, seconds: float, is_watched: bool) -> None:
        remaining_s = seconds
        while remaining_s > 0:
            pause = min(remaining_s, self.plan.watch_s)
            await self._sleep(pause)
            remaining_s -= pause
            if is_watched:
                self._served_s += pause
                self.change.check(self._sum_arms())

    def _sum_arms(self) -> ArmsNow:
        watched_sums, control = self._watched, self._sums[Arm.CONTROL]
        parts = self._by_key.values() if len(self._by_key) > 1 else ()
        rests = []
        for key_control, key_candidate in parts:
            rest = watched_sums - key_candidate
            if self.change.by_slots and differ_in_load(
                (key_control.tokens, control.tokens), (key_candidate.tokens, watched_sums.tokens)
            ):
                rest = replace(rest, timed=0)  # the key's load alone may have slowed the others
            rests.append(ArmsNow(rest, control - key_control))
        return ArmsNow(watched_sums, control, tuple(rests))

    def _record(self, fact: RequestEnded) -> None:
        record = fact.record
        if record.ending is Ending.TIMEOUT and record.facts.chose_timeout:
            return  # the client chose to let it fail, and may know the arm
        served_arm = self.change.find_arm(record)
        arm = served_arm or self.change.find_start(record)
        if arm is None:
            return
        key = record.facts.key
        control_sums, candidate_sums = self._by_key.setdefault(key, (ArmSums(), ArmSums()))
        parts = (self._watched, candidate_sums) if arm is Arm.CANDIDATE else (control_sums,)
        for sums in (self._sums[arm], *parts):
            sums.add(record, served_whole=served_arm is not None)
        session = key, record.facts.session or record.facts.id
        metrics = measure_request if served_arm else measure_ending
        if not self.change.by_slots and self._began.setdefault(session, self._block) != self._block:
            if record.ending not in FAILURES or session in self._failed_late:
                return
            self._failed_late.add(session)
            metrics = measure_ending
        if self.change.by_slots:
            tokens = self._values[arm].setdefault(TOKENS, {})
            tokens.setdefault(session, []).append(float(record.totals.tokens))
        for metric, value in metrics(record):
            self._values[arm].setdefault(metric, {}).setdefault(session, []).append(value)

    async def _conclude(self, verdict: CanaryVerdict) -> None:
        if verdict is CanaryVerdict.PROMOTE:
            await self.change.promote()
        elif verdict is CanaryVerdict.ROLL_BACK:
            await self.change.roll_back()

    def measure_cost(self) -> dict[str, float]:
        """Return the candidate's traffic, and its decoding time beyond the control's rate."""
        candidate, control = self._sums[Arm.CANDIDATE], self._sums[Arm.CONTROL]
        extra_s = candidate.decode_s - candidate.tokens * control.token_s if control.tokens else 0.0
        return {
            "served_s": round(self._served_s, 1),
            "requests": candidate.requests,
            "failed": candidate.failed,
            "tokens": candidate.tokens,
            "extra_s": round(extra_s, 3),
            **self.change.measure_cost(),
        }

    def describe(self) -> dict[str, Any]:
        """Describe the canary for operators."""
        findings = self.findings
        return {
            "kind": self.change.kind,
            "by": "slots" if self.change.by_slots else "sessions",
            **self.change.describe(),
            "candidate": self.change.candidate,
            "control": self.change.control,
            "started_at": self.started_at,
            "ended": bool(findings and findings.ended),
            "verdict": findings and findings.verdict.value,
            "reason": findings and findings.reason,
            "blocks": findings.blocks if findings else 0,
            "max_blocks": self.plan.rules.max_blocks,
            "sessions": findings.sessions if findings else 0,
            "cost": self.measure_cost(),
            "evidence": [describe_evidence(asdict(metric)) for metric in findings.evidence]
            if findings
            else [],
        }


def describe_evidence(evidence: dict[str, Any]) -> dict[str, Any]:
    """Describe a metric's evidence as JSON values and text. Infinite ends become null."""
    interval = evidence.pop("interval")
    ends = {end: interval[end] if math.isfinite(interval[end]) else None for end in ("low", "high")}
    row = {**evidence, "mean": interval["mean"], **ends, "blocks": interval["blocks"]}
    return {**row, "text": describe_effect(row)}
