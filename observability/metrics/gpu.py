"""What the GPUs of this machine do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from observability.metrics.base import MetricGroup
from observability.nvml import GpuReading


class Gpus(MetricGroup):
    """Memory, load and power by GPU, read when somebody asks; absent without GPUs.

    Share of memory in use: ``eaglegate_gpu_memory_used_bytes
    / eaglegate_gpu_memory_total_bytes``
    """

    def declare(self) -> None:
        self._gauge("gpu_memory_used_bytes", "Memory in use", lambda r: r.memory_used_bytes)
        self._gauge("gpu_memory_total_bytes", "Memory there is", lambda r: r.memory_total_bytes)
        self._gauge("gpu_utilization_ratio", "Time in which a kernel ran", lambda r: r.utilization)
        self._gauge("gpu_power_watts", "Power drawn", lambda r: r.power_watts)

    def _gauge(self, name: str, help_: str, pick: Callable[[GpuReading], float | None]) -> None:
        def read() -> Iterable[tuple[Sequence[str], float]]:
            for gpu in self.scope.gpus:
                value = pick(gpu.read())
                if value is not None:
                    yield (str(gpu.index),), value

        self.computed_metric(name, help_, ("gpu",), read)
