"""The environment variables vLLM needs, all of them, in one place.

vLLM and torch read several of these when they are imported, and the engine's child processes
inherit them. A value the user has set is never changed. ``prepare`` runs when this package is
imported, before anything in it imports vLLM.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path

OPENMP = re.compile("lib(omp|gomp|iomp)")

READ_AT_LOAD = (
    "GOMP_", "HF_", "KMP_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "PYTHON",
    "TORCHINDUCTOR_COMPILE_", "TORCHINDUCTOR_CPP_", "TRANSFORMERS_",
)  # fmt: skip
"""How variables begin that libraries read when they are loaded, and not again."""


def prepare() -> None:
    """What holds on every platform. vLLM's own log is for those who ask for it."""
    _set_default("VLLM_LOGGING_LEVEL", "ERROR")
    _set_default("VLLM_NO_USAGE_STATS", "1")
    _set_default("DO_NOT_TRACK", "1")


def prepare_offline() -> None:
    """The model is on disk: ask no hub."""
    _set_default("HF_HUB_OFFLINE", "1")
    _set_default("TRANSFORMERS_OFFLINE", "1")


def prepare_cpu(tensor_parallel: int, threads: int | None = None) -> None:
    """How vLLM runs well on a CPU.

    oneDNN keeps 1,024 primitives of about 250 KiB, one for each size of a batch that a layer has
    had; 128 cost no time that could be measured and a few hundred MiB less (docs/operations.md).

    One worker runs inside the engine process, which saves a process and its imports; several
    workers each get their share of the cores, since unbound ones fight over them (a hundredfold
    slow-down was measured). The ahead-of-time compile cache never warms here, so it stays off.
    """
    _set_default("VLLM_USE_AOT_COMPILE", "0")
    _set_default("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    if tensor_parallel == 1:
        _set_default("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    else:
        _set_default("VLLM_CPU_OMP_THREADS_BIND", bind_cores(sorted(list_cores()), tensor_parallel))
    if threads is not None:
        _set_default("OMP_NUM_THREADS", str(threads))


def predict_engine_environment(demo: bool) -> dict[str, str]:
    """What this module and vLLM (``CpuPlatform``) will have set for the engine process on a CPU, of
    the variables that libraries read when they are loaded.

    Known before vLLM is imported. A wrong guess does no harm: see ``child_process.EnginePreload``.
    """
    wanted = {
        "NUMEXPR_MAX_THREADS": str(len(list_cores())),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    }
    given = os.environ.get("LD_PRELOAD", "")
    if library := _find_libgomp(given):
        wanted["LD_PRELOAD"] = f"{given}:{library}" if given else library
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return (offline if demo else {}) | os.environ | wanted


def select_read_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_LOAD)}


def _find_libgomp(preloaded: str) -> str:
    """PyTorch's own, unless another OpenMP is preloaded."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or OPENMP.search(preloaded):
        return ""
    folder = Path(torch.origin).parent
    places = (folder.parent / "torch.libs", folder / "lib")
    found = (str(file) for place in places for file in place.glob("libgomp*.so*"))
    return next(found, "")


def list_cores() -> set[int]:
    """The cores this process may use."""
    return os.sched_getaffinity(0)


def bind_cores(available: list[int], workers: int) -> str:
    """Share cores out evenly, in vLLM's notation: ``0,1|2,3``.

    >>> bind_cores([0, 1, 2, 3, 4], 2)
    '0,1|2,3'
    """
    share = len(available) // workers
    if share == 0:
        raise ValueError(
            f"tensor parallelism over {workers} needs as many cores, {len(available)} are allowed"
        )
    groups = [available[at * share : (at + 1) * share] for at in range(workers)]
    return "|".join(",".join(map(str, group)) for group in groups)


def _set_default(name: str, value: str) -> None:
    os.environ.setdefault(name, value)
