"""What the front end, the engine process and its workers must agree on."""

from __future__ import annotations

SKIP = "skip_drafting"
"""Attribute of a SchedulerOutput whose step needs no draft model at all."""
SCHEDULER = "engine.vllm_backend.scheduler.scheduler"
WORKER = "engine.vllm_backend.worker.DepthWorker"


def declare_depths(most: int) -> list[tuple[int, int, int]]:
    """Tells vLLM that any depth up to ``most`` occurs, so that it captures CUDA graphs for each.

    In vLLM's notation, (first batch size, last batch size, depth); the batch sizes mean nothing
    here, since the scheduler below decides.
    """
    shallow = [(depth + 1, depth + 1, depth) for depth in range(most)]
    return [*shallow, (most + 1, 1 << 20, most)]
