"""The devices and the memory that an engine needs, on made-up machines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.gpus import GpuDevice
from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.preflight import EnginePlan, make_plan, preflight
from tests.engine.stand_ins import llama_70b


def offline() -> str | None:
    return "HF_HUB_OFFLINE is set"


def make_machine(*free_gib: float | None) -> Machine:
    gpus = (GpuDevice("H100", 80 * GIB, free and int(free * GIB)) for free in free_gib)
    return Machine("cuda", 64, 900 * GIB, gpus=tuple(gpus))


def find_obstacles(plan: EnginePlan, machine: Machine) -> str:
    return " | ".join(preflight(plan, machine, offline).obstacles)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """131 GiB in 16 bits."""
    return str(llama_70b(tmp_path_factory.mktemp("llama") / "70b"))


@pytest.mark.parametrize(
    ("machine", "fits"),
    [
        (make_machine(79, 79), True),
        (make_machine(79, 79, 5), True),
        (make_machine(79, 5, 79), False),
        (make_machine(79, None), True),
        (make_machine(None, 5), False),
    ],
    ids=["two", "a full one beside", "a full one among", "unknown", "unknown and full"],
)
def test_the_gpus_that_workers_take_need_room(llama: str, machine: Machine, fits: bool):
    plan = EnginePlan(llama, tensor_parallel_size=2)
    assert ("GiB of each GPU" in find_obstacles(plan, machine)) is not fits


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, False),
        ({"shrinks_weights": True}, True),
        ({"pipeline_parallel_size": 2}, True),
        ({"pipeline_parallel_size": 2, "kv_cache_bytes": 20 * GIB}, False),
    ],
    ids=str,
)
def test_stored_weights_need_room_after_parallelism(
    llama: str, changes: dict[str, Any], fits: bool
):
    found = find_obstacles(EnginePlan(llama, **changes), make_machine(79, 79))
    assert ("GiB of each GPU" in found) is not fits, found


@pytest.mark.parametrize(
    ("free_gib", "share", "fits"),
    [(70.0, 0.9, False), (72.0, 0.9, True), (30.0, 0.3, True), (None, 0.9, True)],
)
def test_vllm_refuses_a_share_that_is_not_free(free_gib: float | None, share: float, fits: bool):
    """Also for a small model with a small KV cache."""
    demo = Path(__file__).parents[2] / "engine" / "demo" / "target"
    plan = EnginePlan(str(demo), kv_cache_bytes=GIB, gpu_memory_utilization=share)
    obstacles = find_obstacles(plan, make_machine(free_gib))
    assert obstacles == "" if fits else "try --gpu-memory-utilization 0.78" in obstacles


def test_unknown_gpus_are_a_note_and_no_obstacle(llama: str):
    machine = Machine("cuda", 64, 1 * GIB, gpus=None)
    found = preflight(EnginePlan(llama, tensor_parallel_size=8), machine, offline)
    assert found.obstacles == ()
    assert any("nvidia-smi does not answer" in text for text in found.remarks)
    assert "GPUs unknown" in found.facts["this machine"]
    half = preflight(EnginePlan(llama, tensor_parallel_size=2), make_machine(79, None), offline)
    assert any("free memory of 1 of 2 GPUs is unknown" in text for text in half.remarks)


def test_chosen_devices_are_the_ones_that_count(llama: str):
    plan = EnginePlan(llama, tensor_parallel_size=2, device_ids=("0", "2"))
    assert find_obstacles(plan, make_machine(79, 5, 79)) == ""
    assert "1 are visible" in find_obstacles(plan, make_machine(79, 79))
    assert find_obstacles(plan, Machine("cuda", 64, 9 * GIB, gpus=None)) == ""


def test_the_command_line_says_how_weights_are_split():
    plan = make_plan(
        SimpleNamespace(
            model="m", data_parallel_size=8, data_parallel_rank=3, tensor_parallel_size=2,
            prefill_context_parallel_size=2, cpu_offload_gb=10, device_ids=[4, 5],
        )
    )  # fmt: skip
    assert (plan.workers, plan.device_ids, plan.shrinks_weights) == (4, ("4", "5"), True)
    assert make_plan(SimpleNamespace(model="m", data_parallel_size_local=0)).workers == 0


def test_a_kv_connector_keeps_the_hashes_of_blocks_as_they_were():
    arguments = SimpleNamespace(model="m", kv_transfer_config=object())
    assert make_plan(arguments).kv_connector
    assert not make_plan(SimpleNamespace(model="m")).kv_connector
