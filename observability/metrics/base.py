"""Base of the metric groups. A group is one class that declares its metrics and updates them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from eaglegate.engine.fleet.types import WorkerStatus
from eaglegate.engine.machine import NvmlGpu
from eaglegate.engine.totals import Totals
from eaglegate.observability.facts import Fact, FactBus
from eaglegate.observability.labels import LABELS, Labels, TelemetrySettings
from eaglegate.observability.observation import DecodeProgress, RequestRecord
from eaglegate.observability.sequence import MonotonicClock
from eaglegate.observability.windows import SliceWindows

M = TypeVar("M", Counter, Gauge)
Samples = Iterable[tuple[Sequence[str], float]]
"""Label values and value of every series of a metric."""
PREFIX = "eaglegate_"
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Bucket bounds of durations measured once per step or token."""
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bucket bounds of durations measured once per request."""


class AdmissionQueue(Protocol):
    """The part of the queue before the engine that metrics read."""

    @property
    def running(self) -> int:
        """Number of sequences in the engine."""
        ...

    @property
    def queued(self) -> int:
        """Number of waiting requests."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the waiting requests."""
        ...

    @property
    def bounds(self) -> Any:
        """The limits in force, as a dataclass."""
        ...


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """One metric as the documentation lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    group: str


def _find_nothing() -> None:
    """Return None, for a source that this gateway does not have."""


@dataclass(slots=True)
class MetricScope:
    """Sources that a group may read. The composition root sets those with a default."""

    registry: CollectorRegistry
    facts: FactBus
    settings: TelemetrySettings
    book: SliceWindows
    clock: MonotonicClock
    gpus: tuple[NvmlGpu, ...]
    unclaimed: Callable[[], Iterable[tuple[str, Totals]]]
    """Returns each engine's steps for requests whose client had left."""
    running: Callable[[], Iterable[Labels]]
    """Returns the labels of every request in the engine."""
    planner: Callable[[], Mapping[str, Any]]
    """Returns the depth planner's last description; empty without a planner."""
    admission: Callable[[], AdmissionQueue | None] = _find_nothing
    """Returns the queue before the engine, once there is one."""
    workers: Callable[[], Iterable[WorkerStatus]] = tuple
    """Returns the workers of a fleet, if the engine is a fleet."""
    process: Callable[[], Mapping[str, float]] = dict
    """Returns the gateway process's use of its limits, by metric name."""
    catalogue: list[MetricDeclaration] = field(default_factory=list)


class MetricGroup:
    """A group of metrics. It declares them in ``declare`` and updates them in the methods it
    overrides.

    The methods are called on the event loop, in bulk every few seconds and on every scrape.
    Whatever is rarer than requests is a fact, to which ``declare`` subscribes.
    """

    def __init__(self, scope: MetricScope) -> None:
        self.scope = scope
        self.declare()

    def declare(self) -> None:
        """Create the metrics, and subscribe to facts. Called once."""
        raise NotImplementedError

    def on(self, kind: type[Fact], receive: Callable[[Fact], None]) -> None:
        """Call ``receive`` with every fact of this class."""
        self.scope.facts.subscribe(kind, receive)

    def record_progress(self, progress: DecodeProgress) -> None:
        """Record the progress of choices with the same slices since the last call."""

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        """Record ended requests with these labels. Their last progress was recorded before."""

    def counter(
        self, name: str, help_: str, labels: Iterable[str] = LABELS
    ) -> CachedMetric[Counter]:
        names = self._register(name + "_total", "counter", labels, help_)
        metric = Counter(PREFIX + name, help_, names, registry=self.scope.registry)
        return CachedMetric(metric)

    def gauge(self, name: str, help_: str, labels: Iterable[str] = LABELS) -> CachedMetric[Gauge]:
        names = self._register(name, "gauge", labels, help_)
        metric = Gauge(PREFIX + name, help_, names, registry=self.scope.registry)
        return CachedMetric(metric)

    def histogram(self, name: str, help_: str, bounds: Sequence[float]) -> BulkHistogram:
        self._register(name, "histogram", LABELS, help_)
        metric = BulkHistogram(PREFIX + name, help_, LABELS, bounds)
        self.scope.registry.register(metric)
        return metric

    def computed_metric(
        self,
        name: str,
        help_: str,
        labels: Iterable[str],
        read: Callable[[], Samples],
    ) -> None:
        """Declare a metric that is computed on every scrape, and absent if it has no value.

        A name that ends in ``_total`` makes a counter, any other name a gauge.
        """
        kind = "counter" if name.endswith("_total") else "gauge"
        names = self._register(name, kind, labels, help_)
        self.scope.registry.register(ComputedMetric(PREFIX + name, help_, names, read))

    def number_metric(self, name: str, help_: str, read: Callable[[], float | None]) -> None:
        """Declare a metric of one number without labels, absent while ``read`` returns None."""

        def read_samples() -> Samples:
            value = read()
            return () if value is None else (((), value),)

        self.computed_metric(name, help_, (), read_samples)

    def labelled_metric(
        self, name: str, help_: str, label: str, read: Callable[[], Mapping[str, float]]
    ) -> None:
        """Declare a metric of one number for each value of ``label``."""

        def read_samples() -> Samples:
            return [((value,), number) for value, number in read().items()]

        self.computed_metric(name, help_, (label,), read_samples)

    def planner_metric(self, name: str, help_: str, field: str, part: str | None = None) -> None:
        """Declare a metric of one number in ``part`` of the planner's description."""

        def read() -> float | None:
            planner = self.scope.planner()
            return (planner if part is None else planner.get(part, {})).get(field)

        self.number_metric(name, help_, read)

    def _register(self, name: str, kind: str, labels: Iterable[str], help_: str) -> tuple[str, ...]:
        names = tuple(labels)
        declaration = MetricDeclaration(PREFIX + name, kind, names, help_, type(self).__name__)
        self.scope.catalogue.append(declaration)
        return names


class CachedMetric(Generic[M]):
    """A metric whose children are looked up once per label set."""

    def __init__(self, metric: M) -> None:
        self._metric: M = metric
        self._find: Callable[..., M] = cache(metric.labels)

    def __call__(self, *values: str) -> M:
        return self._find(*values)

    def remove(self, **labels: str) -> None:
        """Drop every series with these labels."""
        self._metric.remove_by_labels(labels)
        self._find = cache(self._metric.labels)


class BulkHistogram(Collector):
    """A histogram that takes many observations at a time, at the cost of one bisection each."""

    def __init__(
        self, name: str, help_: str, labels: tuple[str, ...], bounds: Sequence[float]
    ) -> None:
        self._name, self._help, self._labels = name, help_, labels
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, labels: tuple[str, ...], values: Sequence[float]) -> None:
        if not values:
            return
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        for bucket, count in Counted(map(partial(bisect_left, self._bounds), values)).items():
            counts[bucket] += count
        self._sums[labels] = self._sums.get(labels, 0.0) + sum(values)

    def describe(self) -> Iterable[Metric]:
        yield HistogramMetricFamily(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        limits = [*(str(bound) for bound in self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            buckets = list(zip(limits, map(float, accumulate(counts)), strict=True))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family


class ComputedMetric(Collector):
    """A gauge or a counter that is computed when it is read."""

    def __init__(
        self,
        name: str,
        help_: str,
        labels: tuple[str, ...],
        read: Callable[[], Samples],
    ) -> None:
        self._name, self._help, self._labels, self._read = name, help_, labels, read

    def describe(self) -> Iterable[Metric]:
        yield self._family()

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        counts = self._name.endswith("_total")
        family = CounterMetricFamily if counts else GaugeMetricFamily
        return family(self._name, self._help, labels=self._labels)
