"""Metrics of canaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from eaglegate.observability.metrics.base import MetricGroup, MetricScope, Samples


class Canaries(MetricGroup):
    """Trials of drafts and other changes on live traffic (docs/canary.md).

    An effect above 0 is in the candidate's favour; ``low`` and ``high`` are the ends of its
    interval, absent while it is open.
    """

    def __init__(
        self,
        scope: MetricScope,
        describe: Callable[[], Mapping[str, Any] | None] = lambda: None,
        count: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """``describe`` describes the running canary or the last one, and ``count`` counts all by
        verdict.
        """
        self._describe, self._count = describe, count
        super().__init__(scope)

    def declare(self) -> None:
        self.labelled_metric(
            "canaries_total", "Canaries that ended, by verdict", "verdict", self._count
        )
        for name, help_ in (
            ("running", "1 while a candidate is tried"),
            ("blocks", "Blocks so far: pairs of slots, or spans of equal length in both arms"),
        ):
            self.number_metric(f"canary_{name}", help_, partial(self._find, name))
        self.computed_metric(
            "canary_effect",
            "Candidate against control: mean, low and high",
            ("metric", "end"),
            self._effects,
        )

    def _find(self, name: str) -> float | None:
        return (self._describe() or {}).get(name)

    def _effects(self) -> Samples:
        canary = self._describe() or {"evidence": ()}
        for row in canary["evidence"]:
            for end in ("mean", "low", "high"):
                if row["blocks"] and row[end] is not None:
                    yield (row["metric"], end), row[end]


GROUPS: tuple[type[MetricGroup], ...] = (Canaries,)
