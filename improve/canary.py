"""A canary: a candidate draft serves randomly chosen slots of live traffic until it is decided.

One engine has one draft at a time, so the arms take turns (``sequential.py``). The candidate serves
on trial: whatever happens to the engine or the gateway, what comes up again is the promoted draft.
A request counts for the arm that served all of it; one that ran over a swap counts for none.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from engine.base import DraftVersion
from engine.errors import DraftRefused, DraftSwapBusy, EngineError
from engine.events import Outcome
from engine.observer import Ending
from engine.speculation.swap import DraftManager
from engine.speculation.totals import Totals
from improve.sequential import (
    BY_SLICE,
    CanaryFindings,
    CanaryRules,
    CanaryTest,
    CanaryVerdict,
    SlotPair,
)

if TYPE_CHECKING:
    from observability.observation import RequestRecord

log = logging.getLogger(__name__)

FAILURES = (Ending.ENGINE, Ending.ERROR, Ending.TIMEOUT)
TOOL_FAILURES = (Outcome.SCHEMA_MISMATCH, Outcome.MALFORMED, Outcome.UNKNOWN_TOOL)
Values = dict[str, dict[Hashable, list[float]]]


class Traffic(Protocol):
    """What a canary sees of the gateway's traffic."""

    def watch_requests(self, listener: Callable[[RequestRecord], None] | None) -> None:
        """Call it with every request that has ended; None ends it."""
        ...

    def total_of(self, draft: str) -> Totals:
        """All steps so far that the draft with this fingerprint served."""
        ...


STOPPED, FAILED = "stopped", "failed"
"""How a canary ends that reaches no verdict."""


class CanaryBusy(Exception):
    """Another canary is running."""


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """How a candidate is tried."""

    path: str
    slot_s: float = 30.0
    watch_s: float = 1.0
    """How often a serving candidate is looked at for a collapse."""
    collapse: float = 0.5
    """Rolled back at once below this share of the control's accepted tokens per verify step."""
    collapse_steps: int = 50
    """Verify steps before that is judged."""
    rules: CanaryRules = field(default_factory=CanaryRules)

    @classmethod
    def lasting(cls, path: str, slot_s: float, max_s: float, **rules: Any) -> CanaryPlan:
        """At most ``max_s`` seconds; ``rules`` are fields of ``CanaryRules``."""
        blocks = max(1, int(max_s / (2 * slot_s)))
        return cls(path, slot_s, rules=CanaryRules(max_blocks=blocks, **rules))


class Collapsed(Exception):
    """The candidate must not serve on; the message says why."""


class Canary:
    """One trial of one candidate."""

    def __init__(
        self,
        plan: CanaryPlan,
        drafts: DraftManager,
        traffic: Traffic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draws: random.Random | None = None,
    ) -> None:
        self.plan = plan
        self.findings: CanaryFindings | None = None
        self.started_at = time.time()
        self.candidate: DraftVersion | None = None
        self.control: DraftVersion | None = None
        self._drafts, self._traffic, self._sleep = drafts, traffic, sleep
        self._draws = draws or random.Random()
        self._test = CanaryTest(plan.rules)
        self._values: dict[str, Values] = {}
        self._began = Totals()
        """Of the candidate, before it served in this canary."""
        self._served_s = 0.0
        """Seconds of slots that the candidate served."""
        self._served: dict[str, tuple[int, int]] = {}
        """By arm: verify steps and accepted tokens in its slots."""

    async def start(self) -> None:
        """Load the candidate for the first time. Raises DraftRefused, EngineError and others."""
        self.control = self._drafts.promoted
        await self._drafts.swap(self.plan.path, trial=True)
        self.candidate = self._drafts.serving
        self._began = self._traffic.total_of(self._name(1))
        if not self._drafts.in_trial:
            raise DraftRefused("The candidate is the promoted draft itself.")

    async def run(self) -> CanaryFindings:
        """Serve slots until there is a verdict, then promote the candidate or roll it back."""
        self._traffic.watch_requests(self._record)
        try:
            self.findings = await self._decide()
            await self._conclude(self.findings.verdict)
        finally:
            self._traffic.watch_requests(None)
            await self.leave()
        log.warning(
            "canary ended: %s", self.findings.reason, extra={"fields": {"canary": self.describe()}}
        )
        return self.findings

    async def _decide(self) -> CanaryFindings:
        found = self._test.judge()
        try:
            while not found.ended:
                self._test.add(await self._run_block())
                self.findings = found = self._test.judge()
        except Collapsed as why:
            log.warning("canary rolls back at once: %s", why)
            return replace(found, verdict=CanaryVerdict.ROLL_BACK, reason=str(why), ended=True)
        except (EngineError, DraftRefused, DraftSwapBusy) as error:
            verdict, reason = CanaryVerdict.UNDECIDED, f"a draft could not be exchanged: {error}"
            return replace(found, verdict=verdict, reason=reason, ended=True)
        return found

    async def _run_block(self) -> SlotPair:
        assert self.control is not None
        assert self.candidate is not None
        arms = [self.control, self.candidate]
        self._draws.shuffle(arms)
        for arm in arms:
            self._values[arm.fingerprint] = defaultdict(lambda: defaultdict(list))
            await self._enter(arm)
            await self._serve_slot(arm)
        return SlotPair(
            self._values[self.control.fingerprint], self._values[self.candidate.fingerprint]
        )

    async def _enter(self, arm: DraftVersion) -> None:
        serving = self._drafts.serving
        if serving is None or serving.fingerprint not in (self._name(0), self._name(1)):
            raise DraftRefused("another draft was loaded meanwhile")
        if arm is self.candidate:
            await self._drafts.try_again(arm)
        elif self._drafts.in_trial:
            await self._drafts.rollback()

    def _name(self, arm: int) -> str:
        version = (self.control, self.candidate)[arm]
        return "" if version is None else version.fingerprint

    async def _serve_slot(self, arm: DraftVersion) -> None:
        began = self._traffic.total_of(arm.fingerprint)
        left = self.plan.slot_s
        while left > 0:
            pause = min(left, self.plan.watch_s)
            await self._sleep(pause)
            left -= pause
            if arm is self.candidate:
                self._served_s += pause
            now = self._traffic.total_of(arm.fingerprint)
            served = now.verify_steps - began.verify_steps, now.accepted - began.accepted
            if arm is self.candidate:
                self._check(served)
        before = self._served.get(arm.fingerprint, (0, 0))
        self._served[arm.fingerprint] = before[0] + served[0], before[1] + served[1]

    def _check(self, served: tuple[int, int]) -> None:
        """Raises Collapsed."""
        serving = self._drafts.serving
        if serving is None or serving.fingerprint != self._name(1):
            raise Collapsed("the candidate serves no more: an engine restart, or an operator")
        steps, accepted = served
        control = self._traffic.total_of(self._name(0))
        if steps < self.plan.collapse_steps or control.verify_steps < self.plan.collapse_steps:
            return
        ours, theirs = accepted / steps, control.accepted / control.verify_steps
        if ours < self.plan.collapse * theirs:
            raise Collapsed(
                f"acceptance collapsed: {ours:.2f} accepted tokens per verify step, "
                f"{theirs:.2f} with the promoted draft"
            )

    def _record(self, record: RequestRecord) -> None:
        if len(record.drafts) != 1 or record.drafts[0] not in self._values:
            return
        values = self._values[record.drafts[0]]
        session = getattr(record.facts, "session", None) or record.facts.id
        for metric, value in measure_request(record):
            values[metric][session].append(value)

    async def _conclude(self, verdict: CanaryVerdict) -> None:
        if verdict is CanaryVerdict.PROMOTE and self.candidate is not None:
            await self._drafts.promote(self.candidate)

    async def leave(self) -> None:
        """Whatever happened, no trial goes on."""
        await self._drafts.wait_idle()
        if not self._drafts.in_trial:
            return
        try:
            await self._drafts.rollback()
        except (EngineError, DraftRefused, DraftSwapBusy) as error:
            log.error("the candidate could not be rolled back: %s", error)

    def measure_cost(self) -> dict[str, float]:
        """What the candidate has served, and the verify steps it took beyond the control's rate."""
        ours, theirs = self._traffic.total_of(self._name(1)), self._traffic.total_of(self._name(0))
        steps = ours.verify_steps - self._began.verify_steps
        tokens = steps + ours.accepted - self._began.accepted
        usual = tokens * theirs.verify_steps / ((theirs.verify_steps + theirs.accepted) or 1)
        extra = round(steps - usual, 1) if theirs.verify_steps else 0.0
        served_s = round(self._served_s, 1)
        return {"served_s": served_s, "tokens": tokens, "verify_steps": steps, "extra_steps": extra}

    def describe(self) -> dict[str, Any]:
        """For operators."""
        found = self.findings
        return {
            "path": self.plan.path,
            "candidate": self._name(1),
            "control": self._name(0),
            "started_at": self.started_at,
            "ended": bool(found and found.ended),
            "verdict": found and found.verdict.value,
            "reason": found and found.reason,
            "blocks": found.blocks if found else 0,
            "max_blocks": self.plan.rules.max_blocks,
            "sessions": found.sessions if found else 0,
            "cost": self.measure_cost(),
            "evidence": [describe_evidence(asdict(one)) for one in found.evidence] if found else [],
        }


def describe_evidence(evidence: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: an open end is null."""
    interval = evidence.pop("interval")
    ends = {end: interval[end] if math.isfinite(interval[end]) else None for end in ("low", "high")}
    return {**evidence, "mean": interval["mean"], **ends, "blocks": interval["blocks"]}


def measure_request(record: RequestRecord) -> Iterator[tuple[str, float]]:
    """The metrics of one ended request."""
    totals = record.totals
    if record.ending in FAILURES or record.ending is Ending.COMPLETED:
        yield "failed", float(record.ending in FAILURES)
    tpots = [choice.tpot for choice in record.choices if choice.tpot is not None]
    if tpots:
        yield "tpot", fmean(tpots)
    if totals.acceptance_length is not None:
        yield "acceptance", totals.acceptance_length
        yield BY_SLICE + record.slices.labels.workload, totals.acceptance_length
    if totals.fallback_ratio is not None:
        yield "fallback", totals.fallback_ratio
    for choice in record.choices:
        for outcome in choice.tools:
            yield "tool_failed", float(outcome in TOOL_FAILURES)


class CanaryRunner:
    """Runs one canary at a time and keeps the last one for operators."""

    def __init__(self, drafts: DraftManager, traffic: Traffic) -> None:
        self._drafts, self._traffic = drafts, traffic
        self._task: asyncio.Task[CanaryFindings] | None = None
        self.last: Canary | None = None
        self.verdicts = dict.fromkeys((*CanaryVerdict, STOPPED, FAILED), 0)
        """Each is there from the start: Prometheus sees no increase where a series begins."""

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self, plan: CanaryPlan) -> Canary:
        """Raises CanaryBusy, DraftRefused, DraftSwapBusy and EngineError."""
        if self.running:
            raise CanaryBusy("Another canary is running; stop it, or wait for its verdict.")
        canary = Canary(plan, self._drafts, self._traffic)
        await canary.start()
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
        """End it without a verdict: the promoted draft serves."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
            if self.last is not None:  # a task that had not begun cannot end the trial itself
                await self.last.leave()

    def describe(self) -> dict[str, Any] | None:
        """The running canary, or the last one."""
        if self.last is None:
            return None
        return {**self.last.describe(), "running": self.running}
