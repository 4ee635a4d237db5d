"""What the composition root decides about telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from engine.observer import WORKLOADS


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """``models``, ``lanes`` and ``workloads`` are the only values these labels can take."""

    models: tuple[str, ...]
    lanes: tuple[str, ...] = ("default",)
    workloads: tuple[str, ...] = WORKLOADS
    max_depth: int = 16
    """Draft positions that get a series of their own; deeper ones are left out of those."""
    templates: int = 10
    """How many templates are shown by name; the rest is ``other``."""
    window_s: float = 300.0
    """What "now" means for windowed gauges and /debug/speculation."""
    baseline_half_life_s: float = 6 * 3600.0
    """How fast the trailing baseline forgets."""
