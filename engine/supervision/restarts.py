"""When to start an engine again, and when to stop trying.

What counts is service, not survival: a life in which a client got a token clears the count, however
short it was, and so does one of ``stable_s``. A life that a signal from outside ended says nothing
about the engine and is not counted, though the pause before the next start grows all the same.
"""

from __future__ import annotations

from engine.supervision.rules import SupervisionTimeouts


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
