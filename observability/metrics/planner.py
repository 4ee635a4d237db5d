"""Metrics of the depth planner: what it chooses, and how right it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from observability.metrics.base import MetricGroup

Samples = Iterable[tuple[Sequence[str], float]]
Description = Mapping[str, Any]


class PlannedDepths(MetricGroup):
    """Depths that the planner chooses, and why; no series without ``--depth auto``.

    Share of steps at each depth: ``sum by (depth) (rate(eaglegate_planner_steps_total[5m]))
    / ignoring(depth) group_left sum(rate(eaglegate_planner_steps_total[5m]))``. A step drafts once
    for the whole batch; ``eaglegate_planner_requests_total`` counts how many of those draft tokens
    each request verifies. Warm-up has a workload of its own.
    """

    def declare(self) -> None:
        self.computed_metric(
            "planner_steps_total", "Planned steps, by drafting depth", ("depth",), self._steps
        )
        self.computed_metric(
            "planner_decisions_total", "Planned steps, by reason", ("reason",), self._reasons
        )
        self.computed_metric(
            "planner_requests_total",
            "Requests in planned steps, by slice and draft tokens to verify",
            ("workload", "phase", "context", "depth"),
            self._requests,
        )
        self.computed_metric(
            "planner_frozen", "1 while an operator holds the depth", (), self._frozen
        )

    def _steps(self) -> Samples:
        for depth, steps in enumerate(self.scope.planner().get("steps_by_depth", ())):
            yield (str(depth),), steps

    def _reasons(self) -> Samples:
        for reason, steps in self.scope.planner().get("steps_by_reason", {}).items():
            yield (reason,), steps

    def _requests(self) -> Samples:
        counts: Counter[tuple[str, ...]] = Counter()
        for found in self.scope.planner().get("slices", ()):
            workload, phase, context = found["traffic"].rsplit("/", 2)
            for depth, requests in enumerate(found["requests_by_depth"]):
                counts[workload, phase, context, str(depth)] += requests
        yield from counts.items()

    def _frozen(self) -> Samples:
        planner = self.scope.planner()
        if "frozen" in planner:
            yield (), planner["frozen"] is not None


class PlannerCalibration(MetricGroup):
    """What the planner expects beside what comes; no series without ``--depth auto``.

    Calibration, 1 at best: ``rate(eaglegate_planner_expected_tokens_total[15m])
    / rate(eaglegate_planner_committed_tokens_total[15m])``, and the same of the seconds. Estimated
    regret against the best fixed depth, below 0 where planning is ahead:
    ``rate(eaglegate_planner_planned_seconds_total[1h])
    / min(rate(eaglegate_planner_fixed_seconds_total[1h])) - 1``. Share of the time that planning
    takes: ``rate(eaglegate_planner_planning_seconds_total[5m])
    / rate(eaglegate_planner_step_seconds_total[5m])``.
    """

    SUMS = (
        ("expected_tokens", "expected_tokens", "Committed tokens that were expected"),
        ("committed_tokens", "committed_tokens", "Tokens that the same requests committed"),
        ("expected_seconds", "expected_s", "Expected time of steps without prompts"),
        ("step_seconds", "taken_s", "Time that the same steps took"),
        ("planned_seconds", "planned_s", "Expected time of all steps as planned"),
        ("planning_seconds", "planning_s", "Time spent planning"),
    )

    def declare(self) -> None:
        for name, field, meaning in self.SUMS:
            self.computed_metric(f"planner_{name}_total", meaning, (), self._of(field))
        self.computed_metric(
            "planner_fixed_seconds_total",
            "Expected time of the planned tokens at each fixed depth",
            ("depth",),
            self._fixed,
        )

    def _of(self, field: str) -> Callable[[], Samples]:
        def read() -> Samples:
            value = self.scope.planner().get(field)
            if value is not None:
                yield (), value

        return read

    def _fixed(self) -> Samples:
        for depth, seconds in enumerate(self.scope.planner().get("fixed_s", ())):
            yield (str(depth),), seconds


def summarize_planner(planner: Description) -> dict[str, Any] | None:
    """What the page shows; None where no planner runs."""
    if "steps_by_depth" not in planner:
        return None
    steps = sum(planner["steps_by_depth"])
    best = min(planner["fixed_s"])
    return dict(planner) | {
        "share_by_depth": [_divide(count, steps) for count in planner["steps_by_depth"]],
        "token_calibration": _divide(planner["expected_tokens"], planner["committed_tokens"]),
        "time_calibration": _divide(planner["expected_s"], planner["taken_s"]),
        "regret": _divide(planner["planned_s"] - best, best),
        "planning_ms": _divide(1e3 * planner["planning_s"], steps),
        "planning_share": _divide(planner["planning_s"], planner["taken_s"]),
    }


def _divide(part: float, whole: float) -> float | None:
    return part / whole if whole else None
