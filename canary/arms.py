"""The arms of a canary: the change, sums over the requests of each arm, and the limits of a
collapse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from eaglegate.engine.events import Ending
from eaglegate.engine.types import Arm
from eaglegate.text.events import Outcome

if TYPE_CHECKING:
    from eaglegate.observability.observation import RequestRecord

FAILURES = (Ending.ENGINE, Ending.ERROR, Ending.TIMEOUT)
TOOL_FAILURES = (Outcome.SCHEMA_MISMATCH, Outcome.MALFORMED, Outcome.UNKNOWN_TOOL)


class ChangeRefused(Exception):
    """The change cannot be tried. The message says why."""


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
    """Requests with a TPOT. ``tokens`` and ``decode_s`` sum over these requests alone."""
    tokens: int = 0
    decode_s: float = 0.0

    def add(self, record: RequestRecord, whole: bool = True) -> None:
        """Add a request. ``whole``: this arm served all of it, so that its time counts for this
        arm.
        """
        self.requests += 1
        self.failed += record.ending in FAILURES
        tpot = find_tpot(record) if whole else None
        if tpot is not None:
            self.timed += 1
            self.tokens += record.totals.tokens
            self.decode_s += tpot * record.totals.tokens

    @property
    def token_s(self) -> float:
        return self.decode_s / (self.tokens or 1)


@dataclass(frozen=True, slots=True)
class ArmsNow:
    """Sums of both arms, by which a change is watched while its candidate serves."""

    candidate: ArmSums
    """Sums of the current block."""
    control: ArmSums
    """Sums of the whole canary."""


class CanaryChange(Protocol):
    """A change that a canary can try. ``control`` and ``candidate`` name the arms for people."""

    kind: str
    by_slots: bool
    """Whether all traffic meets one arm at a time; else ``start`` begins to draw sessions."""

    @property
    def control(self) -> str: ...

    @property
    def candidate(self) -> str: ...

    async def start(self) -> None:
        """Check that the change can be made. Raises ChangeRefused, and the engine's own errors."""
        ...

    async def enter(self, arm: Arm) -> None:
        """Begin a slot of this arm. Raises Collapsed and Interrupted."""
        ...

    def find_arm(self, record: RequestRecord) -> Arm | None:
        """Find the arm that served all of this request; None if it counts for neither."""
        ...

    def find_start(self, record: RequestRecord) -> Arm | None:
        """Find the arm in which the request began, whatever served it later; None if it counts for
        neither.
        """
        ...

    def check(self, arms: ArmsNow) -> None:
        """Check a serving candidate for a collapse. Raises Collapsed and Interrupted."""
        ...

    async def promote(self) -> None: ...

    async def roll_back(self) -> None:
        """Conclude the trial against the candidate. ``leave`` follows."""
        ...

    async def leave(self) -> None:
        """End the trial, whatever happened. A second call changes nothing."""
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the change as it was asked for."""
        ...

    def measure_cost(self) -> dict[str, float]:
        """Measure the trial's cost beyond the cost that every kind of change reports."""
        ...


@dataclass(frozen=True, slots=True)
class CollapseLimits:
    """Limits beyond which a candidate is rolled back at once."""

    acceptance: float = 0.5
    """A draft: below this share of the control's accepted tokens per verify step."""
    steps: int = 50
    """Verify steps of both drafts before that is judged."""
    slower: float = 4.0
    """Any other change: above so many times the control's time per output token."""
    failing: float = 0.5
    """Likewise: more failed requests than the control's by this share."""
    requests: int = 20
    """Ended requests of an arm before that is judged; of a control that has fewer none failed."""


def draw_arm(is_candidate: bool) -> Arm:
    return Arm.CANDIDATE if is_candidate else Arm.CONTROL


def check_collapse(arms: ArmsNow, limits: CollapseLimits) -> None:
    """Raises Collapsed."""
    ours, theirs = arms.candidate, arms.control
    if ours.requests >= limits.requests:
        failing = ours.failed / ours.requests
        usual = theirs.failed / theirs.requests if theirs.requests >= limits.requests else 0.0
        if failing > usual + limits.failing:
            raise Collapsed(
                f"{failing:.0%} of the candidate's requests fail, {usual:.0%} of the control's"
            )
    if min(ours.timed, theirs.timed) >= limits.requests:
        ratio = ours.token_s / theirs.token_s
        if ratio > limits.slower:
            raise Collapsed(f"an output token takes {ratio:.1f} times as long as the control's")


def find_tpot(record: RequestRecord) -> float | None:
    """Compute the mean TPOT of a request's choices."""
    tpots = [choice.tpot for choice in record.choices if choice.tpot is not None]
    return fmean(tpots) if tpots else None


def measure_ending(record: RequestRecord) -> Iterator[tuple[str, float]]:
    """Yield the metrics of the arm in which a request began; none if its client left."""
    if record.ending in FAILURES or record.ending is Ending.COMPLETED:
        yield "failed", float(record.ending in FAILURES)


def measure_request(record: RequestRecord) -> Iterator[tuple[str, float]]:
    """The metrics of one ended request; those of its slice have the workload behind a colon."""
    totals, workload = record.totals, record.slices.labels.workload
    yield from measure_ending(record)
    sliced = {"tpot": find_tpot(record), "acceptance": totals.acceptance_length}
    for metric, value in sliced.items():
        if value is not None:
            yield metric, value
            yield f"{metric}:{workload}", value
    if totals.fallback_ratio is not None:
        yield "fallback", totals.fallback_ratio
    for choice in record.choices:
        for outcome in choice.tools:
            yield "tool_failed", float(outcome in TOOL_FAILURES)
