"""The workers of a fleet, each by its address."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from engine.fleet.status import WorkerState, WorkerStatus
from observability.labels import OTHER
from observability.metrics.base import MetricGroup

LabelledValues = Mapping[tuple[str, ...], float]
"""Values by what stands behind the worker's name in the labels."""

MOST = 100
"""Workers with series of their own; those beyond them are added up as ``other``."""


class Workers(MetricGroup):
    """What each worker of a fleet does; no series where the engine is not one.

    Share of requests that went where their prefix is cached: ``sum(rate(
    eaglegate_worker_requests_total{why=~"session|prefix"}[5m]))
    / sum(rate(eaglegate_worker_requests_total[5m]))``. Acceptance length by worker, from the
    worker's own counters: ``1 + rate(eaglegate_worker_accepted_tokens_total[5m])
    / rate(eaglegate_worker_verify_steps_total[5m])``. A worker that leaves takes its series along.
    """

    def declare(self) -> None:
        self._add("worker_state", "1 for the state a worker is in", ("state",), _read_states)
        self._add(
            "worker_requests_running", "Requests in a worker now", (), lambda w: {(): w.running}
        )
        self._add(
            "worker_outstanding_tokens",
            "Tokens a worker has before it: prompts to prefill, answers as expected",
            (),
            lambda w: {(): w.outstanding},
        )
        self._add(
            "worker_requests_total",
            "Requests given to a worker, by what decided so",
            ("why",),
            lambda w: {(why,): count for why, count in w.requests.items()},
        )
        self._add("worker_tokens_total", "Tokens a worker made", (), lambda w: {(): w.tokens})
        self._add(
            "worker_moved_requests_total",
            "Requests a worker lost or refused: retried before their first token, or continued",
            ("how",),
            lambda w: {("retried",): w.retried, ("continued",): w.continued},
        )
        self._add(
            "worker_openings_total",
            "Times a worker's circuit opened",
            (),
            lambda w: {(): w.openings},
        )
        self._declare_speculation()

    def _declare_speculation(self) -> None:
        counters = {
            "verify_steps": ("D, as the worker counts it", "verify_steps"),
            "drafted_tokens": ("P, as the worker counts it", "proposed"),
            "accepted_tokens": ("A, as the worker counts it", "accepted"),
        }
        for name, (help_, part) in counters.items():
            self._add(f"worker_{name}_total", help_, (), _read_counter(part))

    def _add(
        self,
        name: str,
        help_: str,
        labels: tuple[str, ...],
        cells: Callable[[WorkerStatus], LabelledValues],
    ) -> None:
        def read() -> Iterator[tuple[Sequence[str], float]]:
            return _sum_by_worker(self.scope.workers(), cells)

        self.computed_metric(name, help_, ("worker", *labels), read)


def _read_states(worker: WorkerStatus) -> LabelledValues:
    return {(state.value,): float(worker.state is state) for state in WorkerState}


def _read_counter(part: str) -> Callable[[WorkerStatus], LabelledValues]:
    def cells(worker: WorkerStatus) -> LabelledValues:
        return {} if worker.counted is None else {(): getattr(worker.counted, part)}

    return cells


def _sum_by_worker(
    workers: Iterable[WorkerStatus], cells: Callable[[WorkerStatus], LabelledValues]
) -> Iterator[tuple[Sequence[str], float]]:
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for at, worker in enumerate(workers):
        name = worker.name if at < MOST else OTHER
        for labels, value in cells(worker).items():
            sums[(name, *labels)] += value
    return iter(sums.items())
