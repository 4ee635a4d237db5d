"""Engine losses, as operators see them in the log and in /admin/status. Without prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.supervision.policy import LossCause

KEPT = 16
"""The number of losses kept."""
REASON = 500
"""The most characters of a reason."""


@dataclass(frozen=True, slots=True)
class PostMortem:
    """How an engine ended, for operators: bounded, and without prompts."""

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
    """What the gateway noticed."""
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
