"""The doctor of a gateway."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from eaglegate.engine.base import DropsBlocks, Engine
from eaglegate.engine.types import EngineInfo
from eaglegate.features.doctor.diagnosis import RUNBOOK, Diagnosis
from eaglegate.features.doctor.doctor import Doctor
from eaglegate.features.doctor.metrics import Diagnoses
from eaglegate.features.doctor.settings import DoctorSettings
from eaglegate.server.cli.feature import ActiveFeature, Core
from eaglegate.server.errors import ConfigError

log = logging.getLogger(__name__)

FAULT_S = 3600.0
"""Seconds for which a fault is a problem."""


class DoctorFeature(ActiveFeature):
    """Doctor of one gateway. Raises ConfigError if the engine is not in this process."""

    def __init__(self, core: Core, settings: DoctorSettings) -> None:
        if core.engine.capability(DropsBlocks) is None:
            raise ConfigError("--doctor needs the engine in this process; workers have none")
        if settings.doctor == "cure":
            log.warning("--doctor cure is now --doctor watch; 0.4.0 will not accept the former one")
        self._engine = core.engine
        metrics = core.telemetry.add_group(Diagnoses)
        self.doctor = Doctor(metrics.count, core.has_room)
        if (drafts := core.backend.drafts) is not None:
            drafts.follow(self.doctor.change_draft)

    def wrap(self, engine: Engine) -> Engine:
        return self.doctor.watch(engine)

    def describe(self) -> Mapping[str, object]:
        return {"doctor": self.doctor.describe()}

    def list_problems(self) -> Iterable[str]:
        return list_faults(self.doctor.diagnoses)

    def start(self, info: EngineInfo) -> None:
        self.doctor.attach(self._engine.generate, info)

    def run(self) -> Coroutine[Any, Any, None]:
        return self.doctor.run()


def list_faults(diagnoses: Iterable[Diagnosis]) -> Iterable[str]:
    """Yield a sentence for each fault of the last hour."""
    start = time.time() - FAULT_S
    faults = {item.cause for item in diagnoses if item.is_fault and item.at > start}
    for cause in sorted(faults):
        yield f"Acceptance fell. The cause is a fault: {cause}; {RUNBOOK}."
