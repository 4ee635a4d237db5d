"""Progress of a long run: its position, its figures, and the remaining time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Running:
    """Exponential mean."""

    decay: float = 0.95
    value: float | None = None

    def add(self, sample: float) -> None:
        value = sample if self.value is None else self.value
        self.value = self.decay * value + (1 - self.decay) * sample

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.4f}"


@dataclass
class Clock:
    """Speed since this process started, and the remaining time at that speed."""

    steps: int
    first_step: int
    start: float = field(default_factory=time.monotonic)

    def describe(self, step: int) -> str:
        spent_s = time.monotonic() - self.start
        remaining_s = spent_s / max(1, step - self.first_step) * (self.steps - step)
        return (
            f"step {step}/{self.steps}, {spent_s / 60:.1f} min, "
            f"about {remaining_s / 60:.0f} min left"
        )
