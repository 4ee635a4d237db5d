"""Whether anything moves in an engine while requests run in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.clock import now


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
