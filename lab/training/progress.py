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
        old = sample if self.value is None else self.value
        self.value = self.decay * old + (1 - self.decay) * sample

    def __str__(self) -> str:
        return "-" if self.value is None else f"{self.value:.4f}"


@dataclass
class Clock:
    """Speed since this process started, and the remaining time at that speed."""

    steps: int
    done: int
    started: float = field(default_factory=time.monotonic)
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.done

    def at(self, step: int) -> str:
        spent = time.monotonic() - self.started
        left = spent / max(1, step - self.first) * (self.steps - step)
        return f"step {step}/{self.steps}, {spent / 60:.1f} min, about {left / 60:.0f} min left"
