"""NVIDIA's management library: memory, load and power of the GPUs, where there are any."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU now; None for values this GPU does not report."""

    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilization: float | None
    """0..1: the share of time in which a kernel ran."""
    power_watts: float | None


class GpuMonitor(Protocol):
    """One GPU; ``index`` is NVML's, which CUDA_VISIBLE_DEVICES does not change."""

    @property
    def index(self) -> int: ...

    def read(self) -> GpuReading: ...


def find_gpus() -> tuple[GpuMonitor, ...]:
    """All GPUs of this machine; none without a driver or without nvidia-ml-py."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.info("GPU metrics disabled: %s", error)
        return ()
    count = nvml.nvmlDeviceGetCount()
    return tuple(NvmlGpu(nvml, index) for index in range(count))


class NvmlGpu:
    """A GPU behind an initialised ``pynvml``."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.index = index
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def read(self) -> GpuReading:
        nvml = self._nvml
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo)
        load = self._query(nvml.nvmlDeviceGetUtilizationRates)
        milliwatts = self._query(nvml.nvmlDeviceGetPowerUsage)
        return GpuReading(
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            utilization=None if load is None else load.gpu / 100,
            power_watts=None if milliwatts is None else milliwatts / 1000,
        )

    def _query(self, question: Any) -> Any:
        try:
            return question(self._handle)
        except self._nvml.NVMLError:
            return None
