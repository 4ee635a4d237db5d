"""Whether tool calls came out well."""

from __future__ import annotations

from collections import Counter

from observability.facts import RequestRecord
from observability.labels import LABELS, Labels
from observability.metrics.base import MetricGroup


class ToolCalls(MetricGroup):
    """Tool calls by outcome: valid, schema_mismatch, malformed, truncated, unknown_tool.

    Failure ratio: ``sum(rate(eaglegate_tool_calls_total{outcome!="valid"}[5m]))
    / sum(rate(eaglegate_tool_calls_total[5m]))``
    """

    def declare(self) -> None:
        self._calls = self.counter("tool_calls", "Tool calls, by outcome", (*LABELS, "outcome"))

    def ended(self, labels: Labels, records: list[RequestRecord]) -> None:
        calls = Counter(call for record in records for c in record.choices for call in c.tools)
        for outcome, count in calls.items():
            self._calls(*labels, outcome.value).inc(count)
