"""Metrics of the audits of finished answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from eaglegate.observability.facts import DraftForgotten
from eaglegate.observability.metrics.base import MetricGroup, MetricScope

if TYPE_CHECKING:
    from eaglegate.features.audit.records import AuditRecord


class Audits(MetricGroup):
    """Metrics of answers that the target scored again without the draft; absent without
    ``--audit-share``.

    ``sum by (workload) (rate(eaglegate_audits_total{outcome="violated"}[15m]))
    / sum by (workload) (rate(eaglegate_audits_total[15m]))``
    """

    def __init__(self, scope: MetricScope, read_holds: Callable[[], Iterable[str]] = tuple) -> None:
        """``read_holds`` returns the workloads that have lost speculation."""
        self._list_holds = read_holds
        super().__init__(scope)

    def declare(self) -> None:
        labels = ("workload", "choosing", "draft", "drafter", "depth", "outcome")
        self._audits = self.counter(
            "audits",
            "Audited answers: lossless, near_tie or violated, by how their tokens were chosen "
            "(greedy, seeded, sampled, grammar), by drafter (draft, lookup, both, none) and the "
            "most tokens that a step verified",
            labels,
        )
        self._drops = self.counter(
            "audits_dropped",
            "Answers selected for an audit and not audited: queue, idle, length, images, rules, "
            "unknown, error; with workers also seed, penalties, distribution (not known from the "
            "alternatives), moved (several workers made it), scorer (no worker scores reliably)",
            ("reason",),
        )
        self._worker_audits = self.counter(
            "worker_audits",
            "Audited answers by the worker that made them: lossless, near_tie or violated",
            ("worker", "outcome"),
        )
        self._seconds = self.counter("audit_seconds", "Time of audits in the engine", ("workload",))
        self.labelled_metric(
            "audit_hold",
            "1 for each workload that has lost speculation, for one key or for all, because of a "
            "violation",
            "workload",
            lambda: dict.fromkeys(self._list_holds(), 1.0),
        )
        self.on(DraftForgotten, lambda fact: self._audits.remove(draft=fact.draft))

    def count(self, record: AuditRecord, workload: str) -> None:
        """Count an audit; ``workload`` is its label."""
        depth = str(min(record.depth, self.scope.settings.max_depth))
        outcome = record.outcome.value
        labels = (workload, record.choosing, record.draft, record.drafter, depth, outcome)
        self._audits(*labels).inc()
        self._seconds(workload).inc(record.took_s)
        if record.worker:
            self._worker_audits(record.worker, outcome).inc()

    def count_drop(self, reason: str) -> None:
        self._drops(reason).inc()


GROUPS: tuple[type[MetricGroup], ...] = (Audits,)
