"""Execution mode of the engine, as configured and as found in the workers.

vLLM lowers graph modes and skips compilation where something does not support them, usually with a
line in its log. ``eaglegate prove`` compares the two sides.

``ExecutionReporter`` is a mix-in for vLLM's worker. ``GraphCounter`` counts in the front end the
graph mode of each step, which vLLM reports with ``--cudagraph-metrics``. ``count_drafts`` reads
vLLM's own counters of drafts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Execution, WorkerExecution

SECOND_RUNNER = "vllm.v1.worker.gpu."
"""Package of vLLM's second model runner, but not of the first."""
STAGES = {
    "load_model": "weights",
    "determine_available_memory": "profiling",
    "compile_or_warm_up_model": "capture",
}
"""Names of the parts of a start by the methods of vLLM's worker. ``worker`` wraps these."""
_stage_s: dict[str, float] = {}


def time_stage(stage: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of the worker and keep its seconds. An override's time includes the method
    that it calls."""
    start = time.monotonic()
    try:
        return original(*args, **kwargs)
    finally:
        _stage_s[stage] = time.monotonic() - start


class ExecutionReporter:
    """Mix-in for vLLM's worker (``worker.DepthWorker``) that reports its execution mode."""

    def describe_start(self) -> dict[str, float]:
        """Return the seconds of this worker's start by part. vLLM compiles while it profiles."""
        worker: Any = self
        config = worker.vllm_config.compilation_config
        profiling_s = _stage_s.get("profiling", 0.0)
        compilation_s = min(config.compilation_time + config.encoder_compilation_time, profiling_s)
        return _stage_s | {"profiling": profiling_s - compilation_s, "compilation": compilation_s}

    def describe_execution(self) -> dict[str, Any]:
        """Return the fields of ``WorkerExecution``. The compiled parts are known once a step has
        run."""
        from vllm.compilation.counter import compilation_counter

        worker: Any = self
        runner = worker.model_runner
        num_compiled, num_parts = count_compiled(worker.get_model())
        config = runner.vllm_config.compilation_config
        return {
            "runner": 2 if is_second_runner(runner) else 1,
            "attention": sorted(set(list_attention(runner))),
            "compilation": config.mode.name,
            "graphs": find_graph_mode(runner).name,
            "captured": compilation_counter.num_cudagraph_captured,
            "compiled_parts": num_compiled,
            "compilable_parts": num_parts,
        }


def is_second_runner(runner: Any) -> bool:
    return any(kind.__module__.startswith(SECOND_RUNNER) for kind in type(runner).__mro__)


def find_graph_mode(runner: Any) -> Any:
    """Return the resolved graph mode, which the second runner keeps in its manager."""
    manager = getattr(runner, "cudagraph_manager", None)
    if manager is not None:
        return manager.cudagraph_mode
    return runner.vllm_config.compilation_config.cudagraph_mode


def list_attention(runner: Any) -> Iterator[str]:
    """Yield the attention backend of every group of layers."""
    for groups in getattr(runner, "attn_groups", ()):
        for group in groups:
            yield group.backend.get_name()


def count_compiled(model: Any) -> tuple[int, int]:
    """Count the target's parts that run compiled, and the parts that vLLM can compile."""
    parts = [part for part in model.modules() if hasattr(part, "do_not_compile")]
    return sum(map(is_compiled, parts)), len(parts)


def is_compiled(part: Any) -> bool:
    """Return True if a part was compiled by its first call, or loaded compiled."""
    was_compiled = (
        getattr(part, "compiled", False) or getattr(part, "aot_compiled_fn", None) is not None
    )
    return bool(was_compiled) and not part.do_not_compile


class GraphCounter(StatLoggerBase):  # type: ignore[misc]
    """Counter of an engine's steps by the graph mode they ran with."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.steps: Counter[str] = Counter()

    def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        stats = scheduler_stats and scheduler_stats.cudagraph_stats
        if stats:
            self.steps[stats.runtime_mode.rpartition(".")[2]] += 1

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM's interface requires this method."""


def read_execution(
    config: VllmConfig, eager: bool, workers: Iterable[Mapping[str, Any]], stat_loggers: Any
) -> Execution:
    """Return the engine's execution. ``config`` is resolved by the front end, before any worker saw
    it."""
    steps: Counter[str] = Counter()
    for logger in stat_loggers:
        for counter in getattr(logger, "per_engine_stat_loggers", {}).values():
            if isinstance(counter, GraphCounter):
                steps += counter.steps
    return Execution(
        eager=eager,
        compilation=config.compilation_config.mode.name,
        graphs=config.compilation_config.cudagraph_mode.name,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        asynchronous=bool(config.scheduler_config.async_scheduling),
        workers=tuple(WorkerExecution(**worker) for worker in workers),
        steps=dict(steps),
    )


def count_drafts(stat_loggers: Iterable[Any]) -> Totals | None:
    """Return drafts, draft tokens and accepted tokens since the engine started; None without
    counters.

    Accepted tokens are counted before a stop or a token limit cuts them.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    for logger in stat_loggers:
        if not isinstance(logger, PrometheusStatLogger):
            continue
        if hasattr(logger, "count"):  # eaglegate's logger batches steps
            logger.count()
        counters = logger.spec_decoding_prom
        if counters.spec_decoding_enabled:
            return Totals(
                verify_steps=sum_counters(counters.counter_spec_decode_num_drafts),
                proposed=sum_counters(counters.counter_spec_decode_num_draft_tokens),
                accepted=sum_counters(counters.counter_spec_decode_num_accepted_tokens),
            )
    return None


def sum_counters(engine_counters: Mapping[int, Any]) -> int:
    samples = (
        sample
        for counter in engine_counters.values()
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )
    return round(sum(float(sample.value) for sample in samples))
