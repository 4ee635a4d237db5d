"""Metrics of the doctor of acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaglegate.observability.facts import DraftForgotten
from eaglegate.observability.metrics.base import MetricGroup

if TYPE_CHECKING:
    from eaglegate.features.doctor.diagnosis import Diagnosis


class Diagnoses(MetricGroup):
    """Metrics of the causes of fallen acceptance; absent without ``--doctor``.

    ``sum by (cause) (increase(eaglegate_diagnoses_total[1d]))``
    """

    def declare(self) -> None:
        self._diagnoses = self.counter(
            "diagnoses",
            "Suspicions of fallen acceptance that trials settled, by cause (cached blocks, draft "
            "weights, traffic, unknown) and outcome (not treated for the first two, nothing done)",
            ("draft", "cause", "outcome"),
        )
        self.on(DraftForgotten, lambda fact: self._diagnoses.remove(draft=fact.draft))

    def count(self, diagnosis: Diagnosis) -> None:
        self._diagnoses(diagnosis.draft, diagnosis.cause.value, diagnosis.outcome).inc()


GROUPS: tuple[type[MetricGroup], ...] = (Diagnoses,)
