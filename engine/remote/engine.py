"""One worker as an Engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from engine.base import Engine
from engine.errors import EngineStartError
from engine.remote.access import Access, Upstream
from engine.remote.model import LocalModel
from engine.types import EngineInfo, EngineRequest, Health, Step


class RemoteEngine:
    """See ``engine.base.Engine``: token ids over HTTP to and from one vLLM server."""

    def __init__(self, upstream: Upstream, model: LocalModel, access: Access) -> None:
        self._upstream = upstream
        self._model = model
        self._access = access

    async def start(self) -> EngineInfo:
        raise EngineStartError(f"{self._upstream}: driving workers is being built")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        if request:
            raise EngineStartError(f"{self._upstream}: driving workers is being built")
        yield Step(())

    async def health(self) -> Health:
        return Health(live=False, reason="not started")

    async def aclose(self) -> None:
        pass


def remote_engine(upstream: Upstream, model: LocalModel, access: Access) -> Engine:
    """The engine that speaks the worker's language; made cheaply, connects when started."""
    return RemoteEngine(upstream, model, access)
