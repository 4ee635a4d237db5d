"""Record engine losses and interrupted requests in telemetry."""

from __future__ import annotations

from engine.supervision.policy import LossCause, RecoveryOutcome
from engine.types import EngineInfo
from observability.telemetry import Telemetry


class SupervisionObserver:
    """``engine.supervision.policy.RecoveryObserver`` for the engine called ``name``."""

    def __init__(self, telemetry: Telemetry, name: str = "default") -> None:
        self._telemetry = telemetry
        self._name = name

    def record_loss(self, cause: LossCause) -> None:
        self._telemetry.record_engine_loss(self._name, cause.value)

    def record_recovery(self, info: EngineInfo, seconds: float) -> None:
        self._telemetry.record_engine_start(self._name, info, seconds)

    def record_interruption(self, outcome: RecoveryOutcome) -> None:
        self._telemetry.record_interruption(outcome.value)
