"""Faults that a test switches on in a running engine; see test_prove_faults.py.

Scheduler and worker share the engine process, so the worker reaches both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase
from eaglegate.engine.vllm_backend.worker import DepthWorker

IGNORES_TEMPERATURE = "a sampler that ignores the temperature"
ACCEPTS_TOO_MANY = "a scheduler that accepts one draft too many"
DRAFTS_TOO_MANY = "a scheduler that drafts one token too many"
FALLS_BACK = "an engine that falls back to eager"

ON: set[str] = set()
"""Faults that are switched on in this process."""


class FaultyWorker(DepthWorker):
    def set_fault(self, fault: str, on: bool) -> None:
        (ON.add if on else ON.discard)(fault)
        if fault == FALLS_BACK:
            self._compile_nothing(on)

    def _compile_nothing(self, on: bool) -> None:
        """Switch compilation off, as vLLM does where it finds something that it cannot compile."""
        worker: Any = self
        for part in worker.get_model().modules():
            if hasattr(part, "do_not_compile"):
                part.do_not_compile = on


def execute_model(
    original: Callable[..., Any], runner: Any, step: SchedulerOutput, *args: Any, **kwargs: Any
) -> Any:
    for request in step.scheduled_new_reqs if IGNORES_TEMPERATURE in ON else ():
        if request.sampling_params is not None and request.sampling_params.temperature:
            request.sampling_params.temperature = 1.0
    return original(runner, step, *args, **kwargs)


def update_from_output(
    original: Callable[..., Any], scheduler: Any, step: SchedulerOutput, output: ModelRunnerOutput
) -> Any:
    """Take the first draft that the target rejected, too."""
    drafted = step.scheduled_spec_decode_tokens if ACCEPTS_TOO_MANY in ON else {}
    for req_id, drafts in drafted.items():
        tokens = output.sampled_token_ids[output.req_id_to_index[req_id]]
        if 0 < len(tokens) <= len(drafts):
            tokens.insert(-1, drafts[len(tokens) - 1])
    return original(scheduler, step, output)


def get_depth(original: Callable[..., int], scheduler: Any, request: Request) -> int:
    depth = original(scheduler, request)
    return min(depth + 1, scheduler.ceiling) if DRAFTS_TOO_MANY in ON else depth


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)


_wrap(GPUModelRunner, "execute_model", execute_model)
_wrap(SecondRunner, "execute_model", execute_model)
_wrap(DepthSchedulerBase, "update_from_output", update_from_output)
_wrap(DepthSchedulerBase, "get_depth", get_depth)
