from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.machine import GpuReading, NvmlGpu, find_gpu_monitors
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.telemetry import Telemetry


@dataclass
class Told:
    index: int
    reading: GpuReading

    def read(self) -> GpuReading:
        return self.reading


def test_each_gpu_has_its_own_and_untold_values_are_absent():
    told = (Told(0, GpuReading(3, 4, 0.5, None)), Told(1, GpuReading(1, 4, None, 70.0)))
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry(), gpus=told)

    def value(name: str, gpu: str) -> float | None:
        return telemetry.registry.get_sample_value("eaglegate_gpu_" + name, {"gpu": gpu})

    assert [value("memory_used_bytes", gpu) for gpu in "01"] == [3, 1]
    assert [value("utilization_ratio", gpu) for gpu in "01"] == [0.5, None]
    assert [value("power_watts", gpu) for gpu in "01"] == [None, 70]


class Nvml:
    """A driver that tells memory and nothing else."""

    class NVMLError(Exception):
        pass

    @dataclass
    class Memory:
        used: int = 5
        total: int = 8

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self.Memory()

    def nvmlDeviceGetUtilizationRates(self, handle):
        raise self.NVMLError("not supported")

    nvmlDeviceGetPowerUsage = nvmlDeviceGetUtilizationRates


def test_readings_that_a_driver_does_not_support_are_none():
    assert NvmlGpu(Nvml(), 0).read() == GpuReading(5, 8, None, None)


def test_monitors_of_this_machine_can_be_read():
    for gpu in find_gpu_monitors():
        assert gpu.read().memory_total_bytes != 0


@pytest.mark.parametrize("name", ["memory_used_bytes", "power_watts"])
def test_without_gpus_nothing_is_exported(name):
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())
    assert telemetry.registry.get_sample_value("eaglegate_gpu_" + name, {"gpu": "0"}) is None
