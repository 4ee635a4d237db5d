"""Supervision policy: time limits, restarts, stall detection, and the observer interface."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from engine.types import EngineInfo


def now() -> float:
    """The running event loop's time in seconds."""
    return asyncio.get_running_loop().time()


class StallDetector:
    """Made on the event loop of the engine it belongs to."""

    def __init__(self) -> None:
        self.num_running = 0
        self._last_step = now()

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a request is in it."""
        if not self.num_running:
            self._last_step = now()
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    def stepped(self) -> None:
        self._last_step = now()

    @property
    def silent_s(self) -> float:
        """How long there were requests in it and no step for any of them."""
        return now() - self._last_step if self.num_running else 0.0


class RestartPolicy:
    """``failures`` in a row, and the pause before the next start."""

    def __init__(self, patience: SupervisionTimeouts) -> None:
        self._patience = patience
        self._starts = 0
        """Since the last life that was of use."""
        self.failures = 0

    def life_ended(self, lived_s: float, *, useful: bool, killed: bool) -> None:
        if useful or lived_s >= self._patience.stable_s:
            self.failures = self._starts = 0
        self._starts += 1
        self.failures += not killed

    def start_failed(self) -> None:
        self._starts += 1
        self.failures += 1

    def absolve(self) -> None:
        """The last losses were the fault of one request, and it is refused."""
        self.failures = self._starts = 0

    @property
    def exhausted(self) -> bool:
        return self.failures > self._patience.max_failures

    @property
    def pause_s(self) -> float:
        return self._patience.backoff(self._starts)


@dataclass(frozen=True, slots=True)
class SupervisionTimeouts:
    """Seconds unless it says otherwise."""

    poll_s: float = 1.0
    """Pause between two questions for the engine's health."""
    hang_s: float = 120.0
    """An engine that leaves the question unanswered this long has hung."""
    stall_s: float = 300.0
    """An engine that has requests and makes no step for any of them this long has hung."""
    start_s: float = 1800.0
    """An engine that is not ready after this long will not be; large models take many minutes."""
    wait_s: float = 300.0
    """A request waits this long for an engine to come back."""
    backoff_s: float = 1.0
    """Pause before the second start in a row; doubles with each further one. The first is free."""
    max_backoff_s: float = 30.0
    stable_s: float = 60.0
    """A life this long is a success, as is one that served a token: failures count anew."""
    max_failures: int = 5
    """Fruitless lives and failed starts in a row after which the supervisor gives up. A life that
    a signal from outside ended is none of them."""
    continuations: int = 4
    """Engine deaths in a row that one request may survive without a new token. Those by a signal
    from outside do not count."""
    losses: int = 20
    """Engine deaths one request may survive in all, so that one that kills engines after each few
    tokens ends. Those by a signal from outside do not count."""
    kills: int = 20
    """Signals from outside that must meet a request alone before it is taken for their cause.

    Many, because the first in line is alone again and again: three came within seconds of chance.
    """

    def backoff(self, failures: int) -> float:
        """The pause before the start that follows ``failures`` failures in a row."""
        if failures <= 1:
            return 0.0
        return float(min(self.max_backoff_s, self.backoff_s * 2 ** (failures - 2)))


class LossCause(StrEnum):
    """How an engine was lost."""

    DIED = "died"
    HUNG = "hung"
    START = "start"
    """It could not be started again."""


class RecoveryOutcome(StrEnum):
    """What became of a request whose engine was lost."""

    RERUN = "rerun"
    """Nothing had been delivered: run again as it was."""
    RESUMED = "resumed"
    """Went on behind the tokens it had."""
    REPLAYED = "replayed"
    """Generated again from the start; what had been delivered was checked and left out."""
    LOST = "lost"
    """Could not be continued."""
    QUARANTINED = "quarantined"
    """Found to kill engines."""


class RecoveryObserver(Protocol):
    """Looks on; raises nothing, waits for nothing."""

    def engine_lost(self, cause: LossCause) -> None: ...

    def engine_back(self, info: EngineInfo, seconds: float) -> None:
        """``seconds`` from the loss to the new engine's being ready."""
        ...

    def interrupted(self, outcome: RecoveryOutcome) -> None:
        """A request met the loss of its engine."""
        ...


class NullRecoveryObserver:
    """Sees nothing."""

    def engine_lost(self, cause: LossCause) -> None:
        pass

    def engine_back(self, info: EngineInfo, seconds: float) -> None:
        pass

    def interrupted(self, outcome: RecoveryOutcome) -> None:
        pass
