"""Supervision policy: time limits, restarts, stall detection, losses, and the observer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic

from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.types import EngineInfo, PostMortem


def now() -> float:
    """Return the running event loop's time in seconds."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class SupervisionTimeouts:
    """Limits of supervision, in seconds unless stated otherwise."""

    poll_s: float = 1.0
    """Pause between two health checks."""
    hang_s: float = 120.0
    """An engine that does not answer a health check in this time has hung."""
    stall_s: float = 300.0
    """An engine that has requests and makes no step for any of them in this time has hung."""
    start_s: float = 1800.0
    """Longest time that an engine may take to start; large models take many minutes."""
    wait_s: float = 300.0
    """Longest time that a request waits for an engine to come back."""
    backoff_s: float = 1.0
    """Pause before the second start in a row; doubles with each further one. None before the
    first."""
    max_backoff_s: float = 30.0
    stable_s: float = 60.0
    """An engine that ran this long, or served a token, resets the failure count."""
    max_failures: int = 5
    """Losses and failed starts in a row after which the supervisor gives up. An engine that a
    signal from outside ended does not count."""
    continuations: int = 4
    """Engine losses in a row that one request may survive without a new token. Losses by a signal
    from outside do not count."""
    losses: int = 20
    """Engine losses in total that one request may survive. This stops a request that crashes
    engines after every few tokens. Losses by a signal from outside do not count."""
    kills: int = 20
    """Number of signals from outside that must hit a request alone before it counts as their cause.

    The limit is high because the first request in line is often alone; three signals within seconds
    have occurred by chance.
    """

    def backoff(self, failures: int) -> float:
        """Return the pause before the start that follows ``failures`` failures in a row."""
        if failures <= 1:
            return 0.0
        return float(min(self.max_backoff_s, self.backoff_s * 2 ** (failures - 2)))


class RestartPolicy:
    """Policy for restarting an engine, and for giving up.

    An engine that served a token or ran for ``stable_s`` resets the count, however briefly it ran.
    The end of an engine by a signal from outside is not counted, because the engine was not at
    fault. The pause before the next start still grows.
    """

    def __init__(self, timeouts: SupervisionTimeouts) -> None:
        self._timeouts = timeouts
        self._starts = 0
        """Starts since an engine was last useful."""
        self.failures = 0

    def record_end(self, lived_s: float, *, useful: bool, was_killed: bool) -> None:
        if useful or lived_s >= self._timeouts.stable_s:
            self.failures = self._starts = 0
        self._starts += 1
        self.failures += not was_killed

    def record_start_failure(self) -> None:
        self._starts += 1
        self.failures += 1

    def reset_failures(self) -> None:
        """Forget the last losses. One request caused them, and it is rejected from now on."""
        self.failures = self._starts = 0

    @property
    def exhausted(self) -> bool:
        return self.failures > self._timeouts.max_failures

    @property
    def pause_s(self) -> float:
        return self._timeouts.backoff(self._starts)


class StallDetector:
    """Measures how long an engine with requests has made no step."""

    def __init__(self) -> None:
        self.num_running = 0
        self.moved = False
        """Set by every step of a request. Only ``stalled_s`` reads the clock."""
        self._last_step = monotonic()

    def begin(self) -> None:
        """Count one more request that runs in the engine."""
        if not self.num_running:
            self._last_step = monotonic()
        self.num_running += 1

    def end(self) -> None:
        self.num_running -= 1

    @property
    def stalled_s(self) -> float:
        """Return a lower bound of the seconds without a step.

        The true time is larger by at most the time since the last call.
        """
        if self.moved:
            self.moved, self._last_step = False, monotonic()
        return monotonic() - self._last_step if self.num_running else 0.0


@dataclass(frozen=True, slots=True)
class AppliedDepth:
    """A depth bound that was set.

    If ``pending``, no engine has confirmed it; it applies from the next engine on at the latest.
    """

    bound: int
    pending: bool = False


class LossCause(StrEnum):
    """Cause of an engine's loss."""

    DIED = "died"
    HUNG = "hung"
    START = "start"
    """A restart failed."""


class RecoveryOutcome(StrEnum):
    """Outcome for a request whose engine was lost."""

    RERUN = "rerun"
    """The request ran again unchanged, since nothing had been delivered."""
    RESUMED = "resumed"
    """The request continued after the delivered tokens."""
    REPLAYED = "replayed"
    """The answer was generated again from the start. Delivered tokens were checked and skipped."""
    LOST = "lost"
    """The request could not be continued."""
    QUARANTINED = "quarantined"
    """The request crashes engines and is rejected."""


class RecoveryObserver:
    """Observer of engine losses and interrupted requests that records nothing by default.

    Overrides must neither raise nor block.
    """

    def record_loss(self, cause: LossCause) -> None:
        """Record that an engine was lost."""

    def record_recovery(self, info: EngineInfo, seconds: float) -> None:
        """Record that a new engine is ready, ``seconds`` after the loss."""

    def record_interruption(self, outcome: RecoveryOutcome, request: str) -> None:
        """Record that the loss of an engine interrupted the request with the id ``request``."""

    def record_draft_death(self, method: str, depth: int) -> None:
        """Record that drafts killed an engine: its request succeeded without them."""

    def record_draft_hold(self, hold: DraftHold, *, is_held: bool) -> None:
        """Record that a depth is held because it killed engines, or that the hold is released."""


KEPT = 16
"""Number of losses kept."""
REASON = 500
"""Most characters of a reason."""


@dataclass(frozen=True, slots=True)
class EngineLoss:
    """The loss of one engine, or one failed start."""

    at: str
    """Time of the loss, in ISO 8601 and UTC."""
    cause: LossCause
    reason: str
    """Sign by which the gateway noticed the loss."""
    lived_s: float | None = None
    """Seconds that the engine ran; None if it did not start."""
    ended_by: str = ""
    """A signal's name or an exit status; empty if the process had not ended by itself."""
    error: str = ""
    """The exception that ended it: the last line of its traceback."""
    log: tuple[str, ...] = ()
    """The last lines that its processes wrote."""
    worker: str | None = None
    """The lost worker, in a fleet."""

    @property
    def summary(self) -> str:
        """The loss in one line."""
        details = [text for text in (self.ended_by, self.error) if text] or [self.reason]
        lifetime = "" if self.lived_s is None else f" after {self.lived_s:.1f} s"
        return f"{self.cause}{lifetime}: {'; '.join(details)}"


def create_loss(
    cause: LossCause,
    reason: str,
    lived_s: float | None,
    post_mortem: PostMortem | None,
    worker: str | None = None,
) -> EngineLoss:
    post_mortem = post_mortem or PostMortem()
    return EngineLoss(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        cause=cause,
        reason=reason[:REASON],
        lived_s=None if lived_s is None else round(lived_s, 1),
        ended_by=post_mortem.ended_by,
        error=post_mortem.error,
        log=post_mortem.log,
        worker=worker,
    )
