"""Names that the front end, the engine process and its workers share, and checks of vLLM's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

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


def find_changed(expected: Mapping[Callable[..., Any], str]) -> list[str]:
    """The names of functions whose parameters are not the ones given, separated by spaces."""
    return [
        function.__qualname__
        for function, parameters in expected.items()
        if list(inspect.signature(function).parameters) != parameters.split()
    ]
