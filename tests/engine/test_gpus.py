"""The GPUs that a process may use, on made-up machines with their own nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglegate.engine.gpus import MIB, GpuDevice, list_gpus

BIG, SMALL = "GPU-aaaa1111, B200, 180000, {free}, Disabled", "GPU-bbbb2222, L4, 23000, 22000, [N/A]"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put an nvidia-smi in PATH that prints the given rows, or fails without any."""

    def install(*rows: str) -> None:
        command = tmp_path / "nvidia-smi"
        text = "\n".join(rows)
        command.write_text(
            f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n" if rows else "#!/bin/sh\nexit 9"
        )
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def free(gpus: tuple[GpuDevice, ...] | None) -> list[int | None]:
    return [gpu.free and gpu.free // MIB for gpu in gpus or ()]


def rows(*sizes: int) -> list[str]:
    return [f"GPU-{at}{at}aa, B200, 180000, {size}, Disabled" for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [10, 20, 30]),
        ("2,0", [30, 10]),
        ("GPU-11aa", [20]),
        ("GPU-2,1", [30, 20]),
        ("1,7,0", [20]),
        ("1,-1,0", [20]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("MIG-77aa", [None]),
    ],
)
def test_visible_devices_are_those_that_cuda_takes(machine, visible: str | None, found: list[int]):
    machine(*rows(10, 20, 30))
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert free(list_gpus(environment)) == found


def test_devices_of_different_models_have_an_order_only_by_their_bus(machine):
    machine(BIG.format(free=170000), SMALL)
    assert free(list_gpus({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})) == [170000, 22000]
    assert free(list_gpus({})) == [None, None]
    assert free(list_gpus({"CUDA_VISIBLE_DEVICES": "1"})) == [None]
    assert free(list_gpus({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"})) == [22000]


@pytest.mark.parametrize(
    "row",
    [
        "GPU-1, GB10, [N/A], [N/A], [N/A]",
        "GPU-1, H100, 81559, 81000, Enabled",
        "GPU-1, H100, 81559, [Insufficient Permissions], Disabled",
    ],
    ids=["shared memory", "in parts", "hidden"],
)
def test_memory_that_nvidia_smi_does_not_tell_is_unknown(machine, row: str):
    machine(row)
    (gpu,) = list_gpus({}) or ()
    assert gpu.free is None


def test_without_an_answer_of_nvidia_smi_the_gpus_are_unknown(machine, monkeypatch):
    machine()
    assert list_gpus({}) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert list_gpus({}) is None
    assert list_gpus({"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert list_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
