"""Whether the engine lives, and how often it had to be started."""

from __future__ import annotations

from engine.types import EngineInfo
from observability.metrics.base import MetricGroup


class EngineState(MetricGroup):
    """Up or not, starts, how long a start took, what speculation runs.

    Restarts: ``increase(eaglegate_engine_starts_total[1h]) - 1`` once it has started;
    ``eaglegate_engine_up == 0`` while it cannot make tokens.
    """

    def declare(self) -> None:
        self._up = self.gauge("engine_up", "1 while the engine can make tokens", ("engine",))
        self._starts = self.counter("engine_starts", "Times the engine became ready", ("engine",))
        self._seconds = self.gauge("engine_start_seconds", "Time the last start took", ("engine",))
        self._info = self.gauge(
            "engine_info", "What runs: always 1", ("engine", "model", "method", "depth")
        )
        self._losses = self.counter(
            "engine_losses", "Engines lost: died, hung, or not started again", ("engine", "cause")
        )
        self._interrupted = self.counter(
            "interrupted_requests",
            "Requests that met an engine's loss, by what came of them",
            ("outcome",),
        )

    def record_engine_start(self, engine: str, info: EngineInfo, seconds: float) -> None:
        self._up(engine).set(1)
        self._starts(engine).inc()
        self._seconds(engine).set(seconds)
        self._info.remove(engine=engine)
        speculation = info.speculation
        self._info(engine, info.model, speculation.method, str(speculation.depth)).set(1)

    def record_engine_state(self, engine: str, live: bool) -> None:
        self._up(engine).set(live)

    def record_engine_loss(self, engine: str, cause: str) -> None:
        self._up(engine).set(0)
        self._losses(engine, cause).inc()

    def record_interruption(self, outcome: str) -> None:
        self._interrupted(outcome).inc()
