"""Metrics of the steps that a latency class of API keys shares with others."""

from __future__ import annotations

from eaglegate.observability.metrics.base import MetricGroup


class SharedSteps(MetricGroup):
    """Steps with a request of a latency class; absent before the first one.

    Time that other requests add, as a share of a step of the class alone:
    ``rate(eaglegate_shared_added_steps_total[5m]) / rate(eaglegate_shared_steps_total[5m])``. Mean
    number of requests that wait in a step: ``rate(eaglegate_shared_waits_total[5m]) /
    rate(eaglegate_shared_steps_total[5m])``. ``GET /debug/speculation`` counts waits by key.
    """

    SUMS = (
        ("steps", "steps", "Steps with a request of a latency class"),
        ("alone_steps", "alone_steps", "Steps of a latency class without other requests"),
        ("added_steps", "added", "Expected time that others added, in steps of the class alone"),
        ("cut_drafts", "cut_drafts", "Draft tokens of other requests that were not verified"),
        ("waits", "held_rows", "Other requests that waited, once for each step"),
    )

    def declare(self) -> None:
        for name, field, meaning in self.SUMS:
            self.planner_metric(f"shared_{name}_total", meaning, field, "sharing")


GROUPS: tuple[type[MetricGroup], ...] = (SharedSteps,)
