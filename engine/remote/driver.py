"""What all engines here share: one connection, from start to close."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineDead, EngineStartError
from engine.remote import probe
from engine.remote.access import ConnectionSettings, Upstream
from engine.remote.connection import WorkerConnection
from engine.remote.model import LocalModel
from engine.types import EngineInfo, Health


def ignore_progress(_: str) -> None:
    """Progress nobody asked for."""


class RemoteEngineBase:
    """The part of ``engine.base.Engine`` that does not depend on the worker's language."""

    def __init__(
        self,
        upstream: Upstream,
        model: LocalModel,
        access: ConnectionSettings,
        progress: Callable[[str], None] = ignore_progress,
    ) -> None:
        self._upstream = upstream
        self._model = model
        self._access = access
        self._progress = progress
        self._connection: WorkerConnection | None = None
        self._closed = False

    async def start(self) -> EngineInfo:
        connection = self._connection = WorkerConnection(self._upstream, self._access)
        try:
            await probe.wait_ready(connection, self._access.start_s, self._progress)
            name, longest = await probe.find_served_model(connection, self._model)
            return await self._meet(connection, name, longest)
        except EngineDead as error:
            await self.aclose()
            raise EngineStartError(str(error)) from error
        except EngineStartError:
            await self.aclose()
            raise

    async def _meet(self, connection: WorkerConnection, name: str, longest: int) -> EngineInfo:
        """Find out what the worker can do. Raises EngineStartError or EngineDead."""
        raise NotImplementedError

    async def health(self) -> Health:
        if self._connection is None:
            return Health(live=False, reason="closed" if self._closed else "not started")
        return await probe.ask_health(self._connection)

    async def aclose(self) -> None:
        connection, self._connection, self._closed = self._connection, None, True
        if connection is not None:
            await connection.aclose()

    def _running(self) -> WorkerConnection:
        if self._connection is None:
            raise EngineDead("The engine was closed." if self._closed else "Not started yet.")
        return self._connection
