"""Makes vLLM on a CPU take the ways that it takes on a GPU.

Python imports this at the start of every process when its folder is on PYTHONPATH.

* ``TRITON_INTERPRET=1``: Triton on PyPI has no backend for CPUs, and without one vLLM uses no
  Triton at all. This adds a backend that only says that it is there; Triton's interpreter runs the
  kernels. vLLM then has its second model runner (``VLLM_USE_V2_MODEL_RUNNER=1``). One kernel is
  not run: that of top-k and top-p calls a method of its loop variable, which is a plain number in
  the interpreter. vLLM's PyTorch version of it, which has the same contract, takes its place. And
  masks may be integers, as in vLLM's kernels of grammars and n-grams: the interpreter alone refuses
  them; and a row may be all NaN, as some are where vLLM compiles a model. torch does not learn of
  Triton: what it compiles, as two workers do, is C++ as with the first runner.
* ``ASYNCHRONOUS_SCHEDULING=1``: vLLM switches it off for CPUs; it is switched on again after that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any


def add_cpu_backend(backends: ModuleType) -> None:
    from triton.backends.compiler import GPUTarget

    class CpuDriver:
        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cpu", 0, 1)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, *_: object) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_device_interface(self) -> Any:
            import torch

            return torch.cpu

    backends.backends["cpu"] = SimpleNamespace(driver=CpuDriver, compiler=None)


def take_integer_masks(interpreter: ModuleType) -> None:
    def create_masked_store(_: object, places: Any, value: Any, mask: Any, __: object) -> Any:
        store = interpreter._interpreter.store
        return store(places.data, value.data, mask.data.astype(bool))

    load = interpreter.InterpreterBuilder.create_masked_load

    def create_masked_load(self: Any, places: Any, mask: Any, *rest: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return load(self, places, mask, *rest)

    interpreter.InterpreterBuilder.create_masked_store = create_masked_store
    interpreter.InterpreterBuilder.create_masked_load = create_masked_load


def take_rows_of_nan(interpreter: ModuleType) -> None:
    """The likeliest token of a row that is all NaN is its first; numpy refuses to name one."""
    numpy = interpreter.np
    reduce = interpreter.ReduceOps.min_max

    def find_largest(data: Any, **given: Any) -> Any:
        known = numpy.where(numpy.isnan(data), -numpy.inf, data)
        return numpy.argmax(known, **given)

    def min_max(self: Any, data: Any, **given: Any) -> Any:
        if given.get("idx_reduce_op") is numpy.nanargmax:
            given["idx_reduce_op"] = find_largest
        return reduce(self, data, **given)

    interpreter.ReduceOps.min_max = min_max


def save_time(interpreter: ModuleType) -> None:
    """The interpreter patches Triton's language anew for every call of every function of a kernel,
    and checks every sum of integers for an overflow, as no GPU does: half the time of a kernel.
    """
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    patch_language = interpreter._patch_lang
    patched: set[int] = set()
    kept = SimpleNamespace(restore=lambda: None)

    def patch(function: Any) -> Any:
        if id(function.__globals__) not in patched:
            patch_language(function)
            patched.add(id(function.__globals__))
        return kept

    interpreter._patch_lang = patch


def hide_from_torch(detection: ModuleType) -> None:
    """torch.compile would ask the backend for a compiler; without Triton it writes C++."""
    for name in ("has_triton", "has_triton_package"):
        setattr(detection, name, lambda: False)


def replace_top_k_kernel(sampler: ModuleType) -> None:
    def apply_top_k_top_p(logits: Any, k: Any, p: Any, **_: Any) -> Any:  # 0.33 names one more
        return sampler.apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)

    sampler.apply_top_k_top_p_triton = apply_top_k_top_p


def schedule_asynchronously(platform: ModuleType) -> None:
    update = platform.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        update(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    platform.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


class AfterImport(MetaPathFinder):
    """Calls ``changes`` with a module once it has been executed."""

    def __init__(self, name: str, *changes: Callable[[ModuleType], None]) -> None:
        self._name, self._changes = name, changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for change in self._changes:
                    change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("TRITON_INTERPRET") == "1":
    sys.meta_path.insert(0, AfterImport("triton.backends", add_cpu_backend))
    name = "triton.runtime.interpreter"
    sys.meta_path.insert(0, AfterImport(name, take_integer_masks, take_rows_of_nan, save_time))
    sys.meta_path.insert(0, AfterImport("torch.utils._triton", hide_from_torch))
    name = "vllm.v1.sample.ops.topk_topp_sampler"
    sys.meta_path.insert(0, AfterImport(name, replace_top_k_kernel))
if os.environ.get("ASYNCHRONOUS_SCHEDULING") == "1":
    sys.meta_path.insert(0, AfterImport("vllm.platforms.cpu", schedule_asynchronously))
