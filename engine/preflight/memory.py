"""Checks for the devices that an engine takes, and for enough memory for its weights.

A start is refused only if it is certain to fail, so every size here is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglegate.engine.gpus import GpuDevice, select_gpus
from eaglegate.engine.preflight.context import (
    EnginePlan,
    PreflightContext,
    format_bytes,
    get_stored_dtype,
)

LEAST_VISIBLE = 0.98
"""Share of nvidia-smi's total memory that CUDA shows at least."""


def check_devices(scene: PreflightContext) -> Iterator[str]:
    workers, machine = scene.plan.workers, scene.machine
    if scene.plan.executor == "ray" or not workers:
        return
    if machine.platform == "cpu":
        if workers > machine.cores:
            cores = f"and there are {machine.cores}; there is no GPU"
            yield f"{workers} workers need a core each, {cores}"
        return
    gpus = find_gpus(scene)
    if machine.platform != "cuda" or gpus is None:
        return
    if not gpus:
        yield (
            "vLLM is installed for GPUs, and none is visible to this process (nvidia-smi, "
            "CUDA_VISIBLE_DEVICES): pip install '.[cpu]' in eaglegate's checkout and another "
            "environment serves without one"
        )
    elif workers > len(gpus):
        yield f"{workers} workers need as many GPUs, and {len(gpus)} are visible to this process"


def check_known_gpus(scene: PreflightContext) -> Iterator[str]:
    """Yield a remark on each check that was not possible. vLLM finds its GPUs in other ways."""
    if scene.machine.platform != "cuda":
        return
    gpus = take_gpus(scene)
    if gpus is None:
        yield "nvidia-smi does not answer: the number of GPUs and their memory were not checked"
    elif num_unknown := sum(gpu.free is None for gpu in gpus):
        yield f"the free memory of {num_unknown} of {len(gpus)} GPUs is unknown and was not checked"


def find_gpus(scene: PreflightContext) -> tuple[GpuDevice, ...] | None:
    """Return the visible GPUs that ``--device-ids`` selects; None if they are unknown."""
    gpus, names = scene.machine.gpus, scene.plan.device_ids
    if gpus is None or not names:
        return gpus
    if not all(name.isdigit() for name in names):
        gpus_by_uuid = {gpu.uuid: gpu for gpu in gpus}
        return tuple(gpus_by_uuid.get(name, GpuDevice(name, None, None)) for name in names)
    return tuple(select_gpus(gpus, names))


def take_gpus(scene: PreflightContext) -> tuple[GpuDevice, ...] | None:
    """Return the GPUs that this node's workers run on, which are the first ones."""
    gpus = find_gpus(scene)
    return gpus if gpus is None else gpus[: scene.plan.workers]


def check_memory(scene: PreflightContext) -> Iterator[str]:
    plan, machine = scene.plan, scene.machine
    if scene.files.checkpoint is None or not scene.files.checkpoint.num_bytes:
        return
    weights = 0.0 if plan.shrinks_weights else count_weights(scene)
    if machine.platform == "cpu":
        need = plan.data_parallel_size * (weights + (plan.kv_cache_bytes or 0))
        if need > machine.free_memory:
            demand = f"weights (and KV cache, where given) need {format_bytes(need)}"
            yield f"{demand} of memory, {format_bytes(machine.free_memory)} are free"
        return
    # Experts are split over all ranks of all replicas, other weights over the ranks of one.
    need = weights / (plan.ranks * plan.data_parallel_size) + (plan.kv_cache_bytes or 0)
    rooms = [(get_room(gpu, plan), gpu.name) for gpu in take_gpus(scene) or ()]
    known_rooms = [(room, name) for room, name in rooms if room is not None]
    if known_rooms and need > min(known_rooms)[0]:
        room, name = min(known_rooms)
        demand = f"weights (and KV cache, where given) need {format_bytes(need)} of each GPU"
        yield f"{demand}, {format_bytes(room)} of a {name} can be used"
        return
    yield from _check_shares(take_gpus(scene) or (), plan.gpu_memory_utilization)


def _check_shares(gpus: Sequence[GpuDevice], share: float) -> Iterator[str]:
    """vLLM refuses to start if less than its share of memory is free, whatever it needs of it."""
    for gpu in gpus:
        if gpu.free is None or gpu.memory is None:
            continue
        if gpu.free < LEAST_VISIBLE * share * gpu.memory:
            max_share = int(90 * gpu.free / gpu.memory) / 100
            yield (
                f"vLLM takes {share:.0%} of a {gpu.name}, {format_bytes(share * gpu.memory)}, and "
                f"{format_bytes(gpu.free)} are free: try --gpu-memory-utilization {max_share:.2f}"
            )
            return


def get_room(gpu: GpuDevice, plan: EnginePlan) -> float | None:
    """Return the bytes available for weights and KV cache.

    If the size of the KV cache is given, the utilization does not limit what vLLM takes.
    """
    if gpu.free is None or gpu.memory is None:
        return None
    if plan.kv_cache_bytes:
        return gpu.free
    return min(gpu.free, gpu.memory * plan.gpu_memory_utilization)


def count_weights(scene: PreflightContext) -> float:
    """Return the fewest bytes that the weights of target and draft take. Of 32-bit models, vLLM
    loads 16 bits.
    """
    narrows = str(get_stored_dtype(scene.files)).endswith("float32")
    return sum(
        checkpoint.num_bytes / (2 if narrows else 1)
        for checkpoint in (scene.files.checkpoint, scene.draft_checkpoint)
        if checkpoint is not None
    )
