"""Supervision policy: time limits, restarts, stall detection, losses, and the observer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic

from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.types import EngineInfo


def now() -> float:
    """The running event loop's time in seconds."""
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
    """The longest an engine may take to start; large models take many minutes."""
    wait_s: float = 300.0
    """The longest a request waits for an engine to come back."""
    backoff_s: float = 1.0
    """Pause before the second start in a row; doubles with each further one. The first is free."""
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
    """Engine losses that one request may survive in all: it bounds a request that crashes engines
    after every few tokens. Losses by a signal from outside do not count."""
    kills: int = 20
    """Signals from outside that must hit a request alone before it is taken for their cause.

    Many, because the first in line is alone again and again: three came within seconds of chance.
    """

    def backoff(self, failures: int) -> float:
        """The pause before the start that follows ``failures`` failures in a row."""
        if failures <= 1:
            return 0.0
        return float(min(self.max_backoff_s, self.backoff_s * 2 ** (failures - 2)))


class RestartPolicy:
    """Policy for restarting an engine, and for giving up.

    An engine that served a token or ran for ``stable_s`` resets the count, however short it ran.
    The end of an engine by a signal from outside says nothing about the engine: it is not counted,
    though the pause before the next start still grows.
    """

    def __init__(self, timeouts: SupervisionTimeouts) -> None:
        self._timeouts = timeouts
        self._starts = 0
        """Starts since an engine was last useful."""
        self.failures = 0

    def record_end(self, lived_s: float, *, useful: bool, killed: bool) -> None:
        if useful or lived_s >= self._timeouts.stable_s:
            self.failures = self._starts = 0
        self._starts += 1
        self.failures += not killed

    def record_start_failure(self) -> None:
        self._starts += 1
        self.failures += 1

    def reset_failures(self) -> None:
        """The last losses were caused by one request, which is rejected from now on."""
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
        """Set with every step of its requests; when that was is only looked at by ``stalled_s``."""
        self._last_step = monotonic()

    def begin(self) -> None:
        """One more request runs in the engine."""
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
    """Receives engine losses and interrupted requests, and ignores them where it is not told
    otherwise. Must neither raise nor block.
    """

    def record_loss(self, cause: LossCause) -> None:
        """An engine was lost."""

    def record_recovery(self, info: EngineInfo, seconds: float) -> None:
        """A new engine is ready, ``seconds`` after the loss."""

    def record_interruption(self, outcome: RecoveryOutcome, request: str) -> None:
        """The request with the id ``request`` was interrupted by the loss of its engine."""

    def record_draft_death(self, method: str, depth: int) -> None:
        """An engine died of its drafts: its request ran well without them."""

    def record_draft_hold(self, hold: DraftHold, *, held: bool) -> None:
        """A depth is held off because it killed engines, or is released."""


KEPT = 16
"""The number of losses kept."""
REASON = 500
"""The most characters of a reason."""


@dataclass(frozen=True, slots=True)
class PostMortem:
    """Report on an engine's end for operators, bounded and without prompts."""

    ended_by: str = ""
    """A signal's name or an exit status."""
    error: str = ""
    """The last line of the traceback that ended it."""
    log: tuple[str, ...] = ()
    """The last lines that its processes wrote."""


@dataclass(frozen=True, slots=True)
class EngineLoss:
    """The loss of one engine, or one failed start."""

    at: str
    """UTC, as ISO 8601 writes it."""
    cause: LossCause
    reason: str
    """Sign by which the gateway noticed the loss."""
    lived_s: float | None = None
    """None for an engine that did not start."""
    ended_by: str = ""
    """A signal's name or an exit status; empty where the process had not ended by itself."""
    error: str = ""
    """The exception that ended it: the last line of its traceback."""
    log: tuple[str, ...] = ()
    """The last lines that its processes wrote."""
    worker: str | None = None
    """The worker that was lost, in a fleet."""

    @property
    def summary(self) -> str:
        """One line."""
        found = [text for text in (self.ended_by, self.error) if text] or [self.reason]
        lived = "" if self.lived_s is None else f" after {self.lived_s:.1f} s"
        return f"{self.cause}{lived}: {'; '.join(found)}"


class LossLog:
    """The last losses, oldest first."""

    def __init__(self) -> None:
        self._losses: deque[EngineLoss] = deque(maxlen=KEPT)

    def add(self, loss: EngineLoss) -> None:
        self._losses.append(loss)

    @property
    def last(self) -> EngineLoss:
        """Raises IndexError when there was none."""
        return self._losses[-1]

    def __iter__(self) -> Iterator[EngineLoss]:
        return iter(tuple(self._losses))


def create_loss(
    cause: LossCause,
    reason: str,
    lived_s: float | None,
    found: PostMortem | None,
    worker: str | None = None,
) -> EngineLoss:
    found = found or PostMortem()
    return EngineLoss(
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        cause=cause,
        reason=reason[:REASON],
        lived_s=None if lived_s is None else round(lived_s, 1),
        ended_by=found.ended_by,
        error=found.error,
        log=found.log,
        worker=worker,
    )
