"""Metrics of the doctor of acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eaglegate.observability.facts import DraftForgotten
from eaglegate.observability.metrics.base import MetricGroup

if TYPE_CHECKING:
    from eaglegate.features.doctor.diagnosis import Diagnosis


class Diagnoses(MetricGroup):
    """Metrics of the causes of fallen acceptance and their treatment; absent without ``--doctor``.

    ``sum by (cause) (increase(eaglegate_diagnoses_total[1d]))``
    """

    def declare(self) -> None:
        self._diagnoses = self.counter(
            "diagnoses",
            "Suspicions of fallen acceptance that trials settled, by cause (cached blocks, draft "
            "weights, traffic, unknown) and outcome (cured, not cured, not treated, nothing done)",
            ("draft", "cause", "outcome"),
        )
        self._cures = self.counter(
            "cures",
            "Cures that the doctor applied (drop prefix, drop prefix cache, reload draft, restart "
            "engine), and whether acceptance came back to within 2 %",
            ("cure", "cured"),
        )
        self.on(DraftForgotten, lambda fact: self._diagnoses.remove(draft=fact.draft))

    def count(self, diagnosis: Diagnosis) -> None:
        self._diagnoses(diagnosis.draft, diagnosis.cause.value, diagnosis.outcome).inc()
        for treatment in diagnosis.treatments:
            self._cures(treatment.cure.value, "true" if treatment.cured else "false").inc()


GROUPS: tuple[type[MetricGroup], ...] = (Diagnoses,)
