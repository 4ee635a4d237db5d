"""Base of engines that add something to another engine's calls."""

from __future__ import annotations

from eaglegate.engine.base import Engine, Kind, T
from eaglegate.engine.types import EngineInfo, EngineRequest, Health, StepSink


class EngineWrapper(Engine):
    """Passes every call on to ``engine``; subclasses override those that they add to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self) -> EngineInfo:
        return await self._engine.start()

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        await self._engine.generate(request, sink)

    async def health(self) -> Health:
        return await self._engine.health()

    async def aclose(self) -> None:
        await self._engine.aclose()

    def capability(self, kind: Kind[T]) -> T | None:
        implementation = super().capability(kind)
        return self._engine.capability(kind) if implementation is None else implementation
