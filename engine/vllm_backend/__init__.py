"""vLLM as an engine: the only package that imports vllm (scripts/tree_rules/layers.py).

All environment variables that vLLM needs are set here. vLLM and torch read several when they are
imported, and the engine's child processes inherit them. A value set by the user is never changed.
``prepare`` runs when this package is imported, before anything in it imports vLLM.
"""

from __future__ import annotations

import os

from eaglegate.engine.vllm_contract import POD_RECORD


def prepare() -> None:
    """Set the variables that hold on every platform. The user's own settings, also of vLLM's log,
    stay.

    vLLM must not fork, because its processes would inherit sockets and threads
    (``child_process.py``).
    """
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")


def prepare_offline() -> None:
    """Set the variables that keep libraries from asking a hub, for models on disk."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


def prepare_cpu(tensor_parallel: int, threads: int | None = None) -> None:
    """Set the variables with which vLLM runs well on a CPU.

    oneDNN keeps 1,024 primitives of about 250 KiB by default, one for each batch size of a layer.
    128 cost no measurable time and save a few hundred MiB (docs/faults.md).

    One worker runs inside the engine process, which saves a process and its imports. Several
    workers each get their share of the cores, because unbound workers compete for them (a
    hundredfold slow-down was measured). The ahead-of-time compile cache never warms here, so it
    stays off.
    """
    os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    if tensor_parallel == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    else:
        binding = bind_cores(sorted(os.sched_getaffinity(0)), tensor_parallel)
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", binding)
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def bind_cores(cores: list[int], workers: int) -> str:
    """Share cores out evenly, in vLLM's notation: ``0,1|2,3``.

    >>> bind_cores([0, 1, 2, 3, 4], 2)
    '0,1|2,3'
    """
    share = len(cores) // workers
    if share == 0:
        raise ValueError(
            f"tensor parallelism over {workers} needs as many cores, {len(cores)} are allowed"
        )
    groups = [cores[index * share : (index + 1) * share] for index in range(workers)]
    return "|".join(",".join(map(str, group)) for group in groups)


if POD_RECORD not in os.environ:  # the variables of a plain ``vllm serve`` are its operator's
    prepare()
