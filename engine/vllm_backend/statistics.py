"""vLLM's own metrics, with the decode steps between two scrapes counted together.

vLLM increments some thirty metrics for every step, most of them by zero. A step in which requests
only continued adds tokens, latencies and drafts, and moves gauges. ``BatchedStatLogger`` keeps
these values and counts them on every scrape, or after ``MAX_STEPS``. vLLM counts every other step
at once, into stand-ins for its metrics that only record values until then. A scrape reads the same
values as with vLLM's own logger, up to the rounding of sums of seconds.

Its dependencies on vLLM are in ``scripts/vllm_parts.py``. Of prometheus-client it uses the place
where a histogram keeps its buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any
from weakref import WeakSet

from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats
from vllm.v1.spec_decode.metrics import SpecDecodingStats

MAX_STEPS = 256
"""Most steps kept. With 500 requests per step their latencies take one or two megabytes."""


class BatchedStatLogger(PrometheusStatLogger):  # type: ignore[misc]
    """A stat logger for ``AsyncLLM(stat_loggers=[BatchedStatLogger])``, in place of vLLM's own."""

    def __init__(self, vllm_config: object, engine_indexes: list[int] | None = None) -> None:
        _BEFORE_READING.loggers.add(self)
        super().__init__(vllm_config, engine_indexes)
        self._pending_stats = {index: PendingStats() for index in self.engine_indexes}
        self._deferred_metrics: list[DeferredMetric] = []
        for attribute in vars(self).values():
            self._defer(attribute)
        self._num_steps = 0
        """Number of steps since the deferred metrics were updated."""
        self._lock = Lock()
        """Needed because metrics may be read from another thread."""

    def _defer(self, table: object) -> None:
        """Put stand-ins into a table of metrics by engine, the form in which vLLM keeps most of its
        metrics."""
        if not isinstance(table, dict):
            return
        for key, value in table.items():
            make = STAND_INS.get(type(value))
            if make is None:
                self._defer(value)
            else:
                table[key] = stand_in = make(value)
                self._deferred_metrics.append(stand_in)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        with self._lock:
            pending_stats = self._pending_stats[engine_idx]
            is_plain = mm_cache_stats is None and self.gauge_lora_info is None
            if is_plain and _is_plain_decode(scheduler_stats, iteration_stats):
                pending_stats.add(scheduler_stats, iteration_stats)
                if len(pending_stats.tokens) >= MAX_STEPS:
                    self._count(engine_idx)
                return
            self._count(engine_idx)
            super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
            self._num_steps += 1
            if self._num_steps >= MAX_STEPS:
                self._flush()

    def count(self) -> None:
        """Count the kept steps in the metrics."""
        with self._lock:
            for index in self._pending_stats:
                self._count(index)
            self._flush()

    def _flush(self) -> None:
        self._num_steps = 0
        for metric in self._deferred_metrics:
            metric.flush()

    def _count(self, index: int) -> None:
        pending_stats = self._pending_stats[index]
        if not pending_stats.tokens:
            return
        self._pending_stats[index] = PendingStats()
        super().record(pending_stats.scheduler(), None, None, index)
        self.counter_generation_tokens[index].inc(sum(pending_stats.tokens))
        self.histogram_iteration_tokens[index].extend(pending_stats.tokens)
        self.histogram_inter_token_latency[index].extend(pending_stats.latencies)


@dataclass(slots=True)
class PendingStats:
    """Statistics of one engine's steps that were not counted yet."""

    tokens: list[int] = field(default_factory=list)
    """Number of tokens of each step."""
    latencies: list[float] = field(default_factory=list)
    """Seconds since the request's last output, for every output."""
    drafts: list[SpecDecodingStats] = field(default_factory=list)
    last_stats: SchedulerStats | None = None

    def add(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        self.tokens.append(iteration.num_generation_tokens)
        self.latencies += iteration.inter_token_latencies_iter
        if scheduler.spec_decoding_stats is not None:
            self.drafts.append(scheduler.spec_decoding_stats)
        self.last_stats = scheduler

    def scheduler(self) -> SchedulerStats:
        """Return the last step's statistics, with the drafts of all steps."""
        assert self.last_stats is not None
        return replace(self.last_stats, spec_decoding_stats=add_stats(self.drafts))


def add_stats(drafts: Sequence[SpecDecodingStats]) -> SpecDecodingStats | None:
    if not drafts:
        return None
    return SpecDecodingStats(
        drafts[0].num_spec_tokens,
        sum(step.num_drafts for step in drafts),
        sum(step.num_draft_tokens for step in drafts),
        sum(step.num_accepted_tokens for step in drafts),
        _sum_columns(step.num_accepted_tokens_per_pos for step in drafts),
        _sum_columns(step.num_draft_tokens_per_pos for step in drafts),
    )


def _sum_columns(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _is_plain_decode(scheduler: SchedulerStats | None, iteration: IterationStats | None) -> bool:
    """Return True if a step's statistics have only tokens, latencies, drafts and gauges."""
    return not (
        scheduler is None
        or iteration is None
        or iteration.prompt_token_stats.total
        or iteration.finished_requests
        or iteration.time_to_first_tokens_iter
        or iteration.max_num_generation_tokens_iter
        or iteration.n_params_iter
        or iteration.num_preempted_reqs
        or iteration.num_corrupted_reqs
        or iteration.num_watermarked_reqs
        or iteration.num_watermark_skipped_reqs
        or iteration.num_not_watermarked_reqs
        or scheduler.prefix_cache_stats.queries
        or scheduler.kv_cache_eviction_events
        or scheduler.connector_prefix_cache_stats is not None
        or scheduler.kv_connector_stats is not None
        or scheduler.ec_connector_stats is not None
        or scheduler.perf_stats is not None
    )


def observe(histogram: Any, values: Sequence[float]) -> None:
    """Observe many values with the same result as ``histogram.observe`` for each, but faster."""
    bounds = histogram._upper_bounds
    for bucket, count in Counter([bisect_left(bounds, value) for value in values]).items():
        histogram._buckets[bucket].inc(count)
    histogram._sum.inc(sum(values))


class DeferredMetric:
    """Stand-in for a metric. Methods that it lacks are the metric's own."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def flush(self) -> None:
        """Update the metric with the recorded values."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        self.flush()
        return getattr(self._metric, name)


class DeferredHistogram(DeferredMetric):
    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._values: list[float] = []
        self.observe = self._values.append
        self.extend = self._values.extend

    def flush(self) -> None:
        if self._values:
            observe(self._metric, self._values)
            self._values.clear()


class DeferredCounter(DeferredMetric):
    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._amount = 0.0

    def inc(self, amount: float = 1) -> None:
        self._amount += amount

    def flush(self) -> None:
        if self._amount:
            self._metric.inc(self._amount)
            self._amount = 0.0


class DeferredGauge(DeferredMetric):
    def __init__(self, metric: Any) -> None:
        super().__init__(metric)
        self._last_value: float | None = None

    def set(self, value: float) -> None:
        self._last_value = value

    def flush(self) -> None:
        if self._last_value is not None:
            self._metric.set(self._last_value)
            self._last_value = None


STAND_INS: dict[type, type[DeferredMetric]] = {
    PrometheusStatLogger._histogram_cls: DeferredHistogram,
    PrometheusStatLogger._counter_cls: DeferredCounter,
    PrometheusStatLogger._gauge_cls: DeferredGauge,
}


class _BeforeReading:
    """A collector without metrics, registered before vLLM's, that makes the loggers count first."""

    def __init__(self) -> None:
        self.loggers: WeakSet[BatchedStatLogger] = WeakSet()

    def collect(self) -> tuple[()]:
        for logger in tuple(self.loggers):
            logger.count()
        return ()


_BEFORE_READING = _BeforeReading()
get_prometheus_registry().register(_BEFORE_READING)
