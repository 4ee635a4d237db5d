"""What a supervisor tells, as telemetry hears it."""

from __future__ import annotations

from engine.supervision.policy import LossCause, RecoveryOutcome
from engine.types import EngineInfo
from observability.telemetry import Telemetry


class SupervisionObserver:
    """``engine.supervision.policy.Watcher`` for the engine called ``name``."""

    def __init__(self, telemetry: Telemetry, name: str = "default") -> None:
        self._telemetry = telemetry
        self._name = name

    def engine_lost(self, cause: LossCause) -> None:
        self._telemetry.engine_lost(self._name, cause.value)

    def engine_back(self, info: EngineInfo, seconds: float) -> None:
        self._telemetry.engine_started(self._name, info, seconds)

    def interrupted(self, outcome: RecoveryOutcome) -> None:
        self._telemetry.interrupted(outcome.value)
