"""Arms of a canary: the interface of a change, sums over each arm's requests, and collapse
limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from eaglegate.engine.events import Ending
from eaglegate.engine.types import Arm
from eaglegate.text.events import Outcome

if TYPE_CHECKING:
    from eaglegate.observability.observation import RequestRecord

FAILURES = (Ending.ENGINE, Ending.ERROR, Ending.TIMEOUT)
TOOL_FAILURES = (Outcome.MALFORMED, Outcome.UNKNOWN_TOOL)
"""Outcomes that count against an arm. A schema is the client's, and may be one that no call fits.
"""
MOST_SLOWER = 4.0
"""Most time per output token before a candidate is rolled back, as a multiple of the control's."""
MOST_FAILING = 0.5
"""Most failed requests before that, as a share above the control's."""
LEAST_REQUESTS = 20
"""Finished requests that an arm needs before it is judged. A control with fewer counts as free of
failures."""
LEAST_OTHERS = 5
"""The same, for the requests that are left without those of one API key."""


class Collapsed(Exception):
    """The candidate must stop serving. The message says why."""


class Interrupted(Exception):
    """The arms can no longer be compared. The message says why."""


@dataclass(slots=True)
class ArmSums:
    """Sums over the ended requests of one arm."""

    requests: int = 0
    failed: int = 0
    timed: int = 0
    """Requests with a TPOT. ``tokens`` and ``decode_s`` are sums over these requests only."""
    tokens: int = 0
    decode_s: float = 0.0
    verify_steps: int = 0
    accepted: int = 0
    """Accepted draft tokens."""

    def add(self, record: RequestRecord, served_whole: bool = True) -> None:
        """Add a request. ``served_whole`` is True if this arm served all of it; only then is
        its time counted.
        """
        self.requests += 1
        self.failed += record.ending in FAILURES
        if served_whole:
            self.verify_steps += record.totals.verify_steps
            self.accepted += record.totals.accepted
        tpot = find_tpot(record) if served_whole else None
        if tpot is not None:
            self.timed += 1
            self.tokens += record.totals.tokens
            self.decode_s += tpot * record.totals.tokens

    def __sub__(self, part: ArmSums) -> ArmSums:
        values = (getattr(self, item.name) - getattr(part, item.name) for item in fields(self))
        return ArmSums(*values)

    @property
    def token_s(self) -> float:
        return self.decode_s / (self.tokens or 1)


@dataclass(frozen=True, slots=True)
class ArmsNow:
    """Sums of both arms, used to watch for a collapse while the candidate serves."""

    candidate: ArmSums
    """Sums over the current block."""
    control: ArmSums
    """Sums over the whole canary."""
    others: tuple[ArmsNow, ...] = ()
    """The same sums without the requests of one API key, for each key; empty for a single key."""


class CanaryChange(Protocol):
    """A change that a canary can try. ``control`` and ``candidate`` are names for display."""

    kind: str
    by_slots: bool
    """True if all traffic is served by one arm at a time. If False, ``start`` begins to assign
    sessions.
    """

    @property
    def control(self) -> str: ...

    @property
    def candidate(self) -> str: ...

    async def start(self) -> None:
        """Check that the change is possible. Raises ChangeRefused and engine errors."""
        ...

    async def enter(self, arm: Arm) -> None:  # noqa: ARG002
        """Begin a slot of this arm. Raises Collapsed and Interrupted."""
        return

    def find_arm(self, record: RequestRecord) -> Arm | None:
        """Return the arm that served the whole request; None if the request counts for neither."""
        return record.facts.arm

    def find_start(self, record: RequestRecord) -> Arm | None:
        """Return the arm in which the request began, regardless of which arm finished it; None if
        the request counts for neither.
        """
        return record.facts.arm

    def check(self, arms: ArmsNow) -> None:
        """Check a serving candidate for a collapse. Raises Collapsed and Interrupted."""
        ...

    async def promote(self) -> None: ...

    async def roll_back(self) -> None:
        """Decide the trial against the candidate. ``leave``, called afterwards, ends it."""
        return

    async def leave(self) -> None:
        """End the trial, whatever its outcome. A second call has no effect."""
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the requested change."""
        ...

    def measure_cost(self) -> dict[str, float]:
        """Return costs of the trial in addition to those that the canary itself reports."""
        return {}


def draw_arm(is_candidate: bool) -> Arm:
    return Arm.CANDIDATE if is_candidate else Arm.CONTROL


def check_collapse(arms: ArmsNow) -> None:
    """Raise Collapsed if the candidate exceeds a limit, whichever API key is left out."""
    reason = find_collapse(arms, LEAST_REQUESTS)
    if reason and all(find_collapse(subset, LEAST_OTHERS) for subset in arms.others):
        raise Collapsed(reason)


def find_collapse(arms: ArmsNow, least: int) -> str:
    """Return the limit that the candidate exceeds, in words; empty if there is none."""
    candidate, control = arms.candidate, arms.control
    if candidate.requests >= least:
        failure_rate = candidate.failed / candidate.requests
        control_rate = control.failed / control.requests if control.requests >= least else 0.0
        if failure_rate > control_rate + MOST_FAILING:
            return (
                f"{failure_rate:.0%} of the candidate's requests fail, "
                f"{control_rate:.0%} of the control's"
            )
    # An answer that came in one joined step has a TPOT of 0.
    if min(candidate.timed, control.timed) >= least and control.token_s:
        ratio = candidate.token_s / control.token_s
        if ratio > MOST_SLOWER:
            return f"an output token takes {ratio:.1f} times as long as the control's"
    return ""


def find_tpot(record: RequestRecord) -> float | None:
    """Return the mean TPOT of a request's choices; None if no choice has one."""
    tpots = [choice.tpot for choice in record.choices if choice.tpot is not None]
    return fmean(tpots) if tpots else None


def measure_ending(record: RequestRecord) -> Iterator[tuple[str, float]]:
    """Yield metrics that count for the arm in which the request began; none if the client left."""
    if record.ending in FAILURES or record.ending is Ending.COMPLETED:
        yield "failed", float(record.ending in FAILURES)


def measure_request(record: RequestRecord) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a finished request. Metrics of its slice end with a colon and the
    workload.
    """
    totals, workload = record.totals, record.slices.labels.workload
    yield from measure_ending(record)
    slice_values = {"tpot": find_tpot(record), "acceptance": totals.acceptance_length}
    for metric, value in slice_values.items():
        if value is not None:
            yield metric, value
            yield f"{metric}:{workload}", value
    if totals.fallback_ratio is not None:
        yield "fallback", totals.fallback_ratio
    for choice in record.choices:
        for outcome in choice.tools:
            yield "tool_failed", float(outcome in TOOL_FAILURES)
