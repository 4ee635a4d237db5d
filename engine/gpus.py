"""The GPUs that CUDA shows to this process, from nvidia-smi's list of the machine's GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

MIB = 1024**2
QUERY = (
    "--query-gpu=uuid,name,memory.total,memory.free,mig.mode.current",
    "--format=csv,noheader,nounits",
)
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One device, with bytes of memory; None where they are unknown."""

    name: str
    memory: int | None
    free: int | None
    uuid: str = ""


def list_gpus(environment: Mapping[str, str] = os.environ) -> tuple[GpuDevice, ...] | None:
    """Return the visible GPUs in CUDA's order; None if nvidia-smi is absent or fails."""
    selection = environment.get(VISIBLE)
    if selection is not None and not _starts_with_device(selection):
        return ()
    output = _run_nvidia_smi()
    if output is None:
        return None
    gpus = tuple(_read_rows(output))
    if environment.get(ORDER) != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        return _select_unordered(gpus, selection)
    return gpus if selection is None else tuple(select_gpus(gpus, selection.split(",")))


def select_gpus(gpus: Sequence[GpuDevice], names: Sequence[str]) -> Iterator[GpuDevice]:
    """Yield the GPUs with these indexes, UUIDs or UUID prefixes, up to the first unknown name.

    CUDA reads ``CUDA_VISIBLE_DEVICES`` in the same way (CUDA C++ Programming Guide, environment
    variables). A part of a GPU (MIG) has a UUID that nvidia-smi does not list.
    """
    for name in map(str.strip, names):
        if name.startswith("MIG-"):
            yield GpuDevice("MIG device", None, None, name)
            continue
        matches = (
            gpus[int(name) : int(name) + 1]
            if name.isdigit()
            else [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        )
        if len(matches) != 1:
            return
        yield matches[0]


def _select_unordered(gpus: tuple[GpuDevice, ...], selection: str | None) -> tuple[GpuDevice, ...]:
    """Return as many unnamed GPUs as are selected. By default CUDA puts the fastest GPU first,
    which nvidia-smi does not identify. An index therefore tells how many GPUs are visible, but not
    which."""
    if selection is not None and not selection.split(",")[0].strip().isdigit():
        return tuple(select_gpus(gpus, selection.split(",")))
    count = len(gpus if selection is None else list(select_gpus(gpus, selection.split(","))))
    return (GpuDevice("GPU of unknown order", None, None),) * count


def _starts_with_device(selection: str) -> bool:
    device = selection.split(",")[0].strip()
    return device.isdigit() or device.startswith(("GPU-", "MIG-"))


def _run_nvidia_smi() -> str | None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        return subprocess.run(
            [command, *QUERY], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (subprocess.SubprocessError, OSError):
        return None


def _read_rows(output: str) -> Iterator[GpuDevice]:
    """Yield the listed GPUs. A GPU that shares its memory with the CPU reports ``[N/A]``. For a GPU
    in MIG mode the memory is unknown, because a process gets only a part of it."""
    for line in output.splitlines():
        if line.count(", ") != 4:
            continue
        uuid, name, *sizes, parts = line.split(", ")
        total_bytes, free_bytes = (int(size) * MIB if size.isdigit() else None for size in sizes)
        gpu = GpuDevice(name, total_bytes, free_bytes, uuid)
        yield replace(gpu, memory=None, free=None) if parts == "Enabled" else gpu
