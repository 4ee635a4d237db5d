"""The doctor of a gateway."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from eaglegate.engine.base import Engine, Remedies
from eaglegate.engine.types import EngineInfo
from eaglegate.features.doctor.diagnosis import Diagnosis
from eaglegate.features.doctor.doctor import Doctor, Mode
from eaglegate.features.doctor.metrics import Diagnoses
from eaglegate.features.doctor.settings import DoctorSettings
from eaglegate.server.cli.feature import ActiveFeature, Core
from eaglegate.server.errors import ConfigError

UNCURED = ("not cured", "not treated")
UNCURED_S = 3600.0
"""Seconds for which a cause that was not cured is a problem."""


class DoctorFeature(ActiveFeature):
    """Doctor of one gateway. Raises ConfigError if the engine offers no remedies."""

    def __init__(self, core: Core, settings: DoctorSettings) -> None:
        if (remedies := core.engine.capability(Remedies)) is None:
            raise ConfigError("--doctor needs the engine in this process; workers have none")
        self._engine, self._remedies = core.engine, remedies
        drafts = core.backend.drafts
        reload = None if drafts is None else drafts.reload
        self.doctor = Doctor(Mode(settings.doctor), self, core.has_room, reload)
        if drafts is not None:
            drafts.follow(self.doctor.change_draft)
        self._metrics = core.telemetry.add_group(Diagnoses)

    def wrap(self, engine: Engine) -> Engine:
        return self.doctor.watch(engine)

    def describe(self) -> Mapping[str, object]:
        return {"doctor": self.doctor.describe()}

    def list_problems(self) -> Iterable[str]:
        return list_uncured_causes(self.doctor.describe()["diagnoses"])

    def start(self, info: EngineInfo) -> None:
        self.doctor.attach(self._remedies, self._engine.generate, info)

    def run(self) -> Coroutine[Any, Any, None]:
        return self.doctor.run()

    def record_diagnosis(self, diagnosis: Diagnosis) -> None:
        self._metrics.count(diagnosis)


def list_uncured_causes(diagnoses: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a sentence for each cause of the last hour that is not cured."""
    causes = {
        diagnosis["cause"]
        for diagnosis in diagnoses
        if diagnosis["outcome"] in UNCURED and diagnosis["at"] > time.time() - UNCURED_S
    }
    for cause in sorted(map(str, causes)):
        yield f"Acceptance fell, and the doctor has not cured the cause: {cause} (docs/doctor.md)."
