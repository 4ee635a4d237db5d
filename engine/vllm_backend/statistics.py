"""vLLM's own metrics, updated once for many steps.

vLLM increments some thirty metrics for every step, most of them by zero. ``BatchedStatLogger`` puts
stand-ins in their places, which only record values, and updates the metrics on every scrape, or
after ``MAX_STEPS``. A scrape reads the same values as with vLLM's own logger, up to the rounding of
sums of seconds.

Its dependencies on vLLM are in ``engine/vllm_parts.py``. Of prometheus-client it uses the place
where a histogram keeps its buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakSet

from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.prometheus import get_prometheus_registry

MAX_STEPS = 256
"""Most steps that are not in the metrics yet. With 500 requests per step their latencies take one
or two megabytes."""


class BatchedStatLogger(PrometheusStatLogger):  # type: ignore[misc]
    """A stat logger for ``AsyncLLM(stat_loggers=[BatchedStatLogger])``, in place of vLLM's own."""

    def __init__(self, vllm_config: object, engine_indexes: list[int] | None = None) -> None:
        _BEFORE_READING.loggers.add(self)
        super().__init__(vllm_config, engine_indexes)
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

    def record(self, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            super().record(*args, **kwargs)
            self._num_steps += 1
            if self._num_steps >= MAX_STEPS:
                self._flush()

    def count(self) -> None:
        """Update the metrics with all steps so far."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._num_steps = 0
        for metric in self._deferred_metrics:
            metric.flush()


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
