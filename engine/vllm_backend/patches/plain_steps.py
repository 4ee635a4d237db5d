"""A step that verifies nothing takes the rejection sampler, which costs more than the plain one."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import Original, Wrap

THREAD = UNTIL = ""


def sample(original: Original, runner: GPUModelRunner, logits: Any, metadata: Any) -> Any:
    if metadata is not None and not runner.use_async_scheduling and metadata.max_spec_len == 0:
        metadata = None
    return original(runner, logits, metadata)


def patch(wrap: Wrap) -> None:
    wrap(GPUModelRunner, "_sample", sample)
