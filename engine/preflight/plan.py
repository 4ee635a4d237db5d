"""The engine arguments that decide whether an engine can start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The engine arguments that decide whether it can start; the rest is the engine's own."""

    model: str
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    attention_backend: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    local_data_parallel_size: int | None = None
    nodes: int = 1
    executor: str | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_bytes: int | None = None
    load_format: str = "auto"
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the model's config.json."""
    speculative_config: Mapping[str, Any] | None = None

    @property
    def workers(self) -> int:
        """Processes on this machine, each with a device of its own."""
        ranks = -(-self.tensor_parallel_size * self.pipeline_parallel_size // self.nodes)
        return ranks * (self.local_data_parallel_size or self.data_parallel_size)


def make_plan(arguments: Any) -> EnginePlan:
    """From the engine's arguments, or from a parsed command line that names a model.

    Absent ones keep their default. A command line is taken as it is, so that one made for a larger
    machine can be looked at here.
    """
    speculation = getattr(arguments, "speculative_config", None)
    overrides = getattr(arguments, "hf_overrides", None)
    names = ("revision", "tokenizer", "quantization", "max_model_len")
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    taken: dict[str, Any] = {name: getattr(arguments, name, None) for name in names}
    taken |= {name: getattr(arguments, name, None) or 1 for name in sizes}
    return EnginePlan(
        model=str(getattr(arguments, "model_tag", None) or arguments.model),
        **taken,
        dtype=str(getattr(arguments, "dtype", "auto")),
        attention_backend=get_backend_name(getattr(arguments, "attention_backend", None)),
        local_data_parallel_size=getattr(arguments, "data_parallel_size_local", None),
        nodes=getattr(arguments, "nnodes", None) or 1,
        executor=get_executor_name(getattr(arguments, "distributed_executor_backend", None)),
        gpu_memory_utilization=getattr(arguments, "gpu_memory_utilization", None) or 0.9,
        kv_cache_bytes=getattr(arguments, "kv_cache_memory_bytes", None),
        hf_overrides=overrides if isinstance(overrides, Mapping) else {},
        load_format=str(getattr(arguments, "load_format", "auto")),
        speculative_config=dict(speculation) if speculation else None,
    )


def get_backend_name(value: Any) -> str | None:
    """vLLM keeps an enum, the command line a word."""
    return None if value is None else str(getattr(value, "name", value)).upper()


def get_executor_name(value: Any) -> str | None:
    """A word, or a class of the user's own."""
    return value if value is None or isinstance(value, str) else getattr(value, "__name__", "own")
