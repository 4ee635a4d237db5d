"""Telemetry of engines: a wrapper that records every step, and an observer of engine losses."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from eaglegate.engine.base import Engine
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.supervision.policy import LossCause, RecoveryObserver, RecoveryOutcome
from eaglegate.engine.types import EngineInfo, EngineRequest, Health, SinkTap, StepSink
from eaglegate.engine.wrapper import EngineWrapper
from eaglegate.observability.facts import (
    DepthHeld,
    DraftCrashed,
    EngineChecked,
    EngineLost,
    EngineStarted,
    RequestInterrupted,
)
from eaglegate.observability.middleware import current
from eaglegate.observability.telemetry import Telemetry


class InstrumentedEngine(EngineWrapper):
    """Wrapper of ``engine`` that records its steps. It changes requests only to add a trace
    context."""

    def __init__(self, engine: Engine, telemetry: Telemetry, name: str = "default") -> None:
        super().__init__(engine)
        self._telemetry = telemetry
        self._name = name
        self._model = ""
        telemetry.watch_engine(name, engine)

    async def start(self) -> EngineInfo:
        start_time = self._telemetry.clock()
        info = await super().start()
        self._model = info.model
        seconds = self._telemetry.clock() - start_time
        self._telemetry.facts.publish(EngineStarted(self._name, info, seconds))
        return info

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        sequence, close = self._telemetry.open_sequence(request, self._model)
        if trace_headers := _find_trace_headers():
            request = structs.replace(request, trace_headers=trace_headers)
        try:
            await self._engine.generate(request, SinkTap(sink, sequence.add_step))
        finally:
            close()

    async def health(self) -> Health:
        health = await super().health()
        self._telemetry.facts.publish(EngineChecked(self._name, health.live))
        return health

    async def aclose(self) -> None:
        await super().aclose()
        self._telemetry.facts.publish(EngineChecked(self._name, live=False))


def _find_trace_headers() -> Mapping[str, str]:
    """Return the headers of the current exchange's trace; empty without a trace."""
    exchange = current.get()
    return {} if exchange is None else exchange.trace_headers


class SupervisionObserver(RecoveryObserver):
    """Reports the losses of the engine called ``name`` to telemetry."""

    def __init__(self, telemetry: Telemetry, name: str = "default") -> None:
        self._facts = telemetry.facts
        self._name = name

    def record_loss(self, cause: LossCause) -> None:
        self._facts.publish(EngineLost(self._name, cause.value))

    def record_recovery(self, info: EngineInfo, seconds: float) -> None:
        self._facts.publish(EngineStarted(self._name, info, seconds))

    def record_interruption(self, outcome: RecoveryOutcome, request: str) -> None:
        self._facts.publish(RequestInterrupted(outcome.value, request))

    def record_draft_death(self, method: str, depth: int) -> None:
        self._facts.publish(DraftCrashed(self._name, method, depth))

    def record_draft_hold(self, hold: DraftHold, *, is_held: bool) -> None:
        self._facts.publish(DepthHeld(self._name, hold, is_held))
