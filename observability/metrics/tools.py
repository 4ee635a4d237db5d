"""Whether tool calls came out well."""

from __future__ import annotations

from collections import Counter

from observability.facts import RequestRecord
from observability.labels import LABELS, Labels
from observability.metrics.base import MetricGroup


class ToolCalls(MetricGroup):
    """Tool calls by outcome: valid, unchecked, schema_mismatch, malformed, truncated, unknown_tool.

    Failure ratio: ``sum(rate(eaglegate_tool_calls_total{outcome!~"valid|unchecked"}[5m]))
    / sum(rate(eaglegate_tool_calls_total[5m]))``. Repairs by kind: docs/parsers.md.
    """

    def declare(self) -> None:
        self._calls = self.counter("tool_calls", "Tool calls, by outcome", (*LABELS, "outcome"))
        self._repairs = self.counter(
            "tool_call_repairs", "Tool calls with mended arguments, by repair", (*LABELS, "repair")
        )

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        calls = Counter(call for record in records for c in record.choices for call in c.tools)
        for outcome, count in calls.items():
            self._calls(*labels, outcome.value).inc(count)
        repairs = Counter(one for record in records for c in record.choices for one in c.repairs)
        for repair, count in repairs.items():
            self._repairs(*labels, repair.value).inc(count)
