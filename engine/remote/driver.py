"""Base of the remote engines: one connection to a worker, from start to close."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import EngineDead, EngineStartError
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.reading import (
    extract_message,
    quote,
    read_integer,
    read_json,
    read_list,
    read_object,
    read_string,
)
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel, Upstream
from eaglegate.engine.types import VERSION, EngineInfo, Health

POLL_S = 1.0
MODELS = "/v1/models"
LONGEST_VERSION = 80
MOST_MODELS = 1000
MOST_LENGTH = 1 << 28
LONGEST_NAME = 500


class RemoteEngineBase(Engine):
    """Base engine for one worker, with the part that does not depend on the wire protocol."""

    def __init__(self, upstream: Upstream, model: LocalModel, access: ConnectionSettings) -> None:
        self._upstream = upstream
        self._model = model
        self._access = access
        self._connection: WorkerConnection | None = None
        self._closed = False

    async def start(self) -> EngineInfo:
        connection = self._connection = WorkerConnection(self._upstream, self._access)
        try:
            await wait_ready(connection, self._access.start_s)
            name, max_model_len = await find_served_model(connection, self._model)
            version = await ask_version(connection)
            info = await self._probe(connection, name, max_model_len)
            return replace(info, details={**info.details, **version})
        except EngineDead as error:
            await self.aclose()
            raise EngineStartError(str(error)) from error
        except EngineStartError:
            await self.aclose()
            raise

    async def _probe(
        self, connection: WorkerConnection, name: str, max_model_len: int
    ) -> EngineInfo:
        """Probe what the worker supports. Raises EngineStartError or EngineDead."""
        raise NotImplementedError

    async def health(self) -> Health:
        if self._connection is None:
            return Health(live=False, reason="closed" if self._closed else "not started")
        return await ask_health(self._connection)

    async def aclose(self) -> None:
        connection, self._connection, self._closed = self._connection, None, True
        if connection is not None:
            await connection.aclose()

    def _require_connection(self) -> WorkerConnection:
        if self._connection is None:
            raise EngineDead("The engine was closed." if self._closed else "Not started yet.")
        return self._connection


async def wait_ready(connection: WorkerConnection, patience_s: float) -> None:
    """Wait until ``/health`` reports ready. Raises EngineStartError."""
    reason = ""
    try:
        async with asyncio.timeout(patience_s):
            while not (health := await ask_health(connection)).live:
                reason = health.reason
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise EngineStartError(
            f"The worker {connection.upstream} was not ready after {patience_s:g} s: {reason}"
        ) from None


async def ask_health(connection: WorkerConnection) -> Health:
    """Return the worker's health. A worker without ``/health`` is asked for its models instead."""
    try:
        answer = await connection.ask(connection.health_path)
    except EngineDead as error:
        return Health(live=False, reason=str(error))
    if answer.status == httpx.codes.NOT_FOUND and connection.health_path != MODELS:
        connection.health_path = MODELS
        return await ask_health(connection)
    return Health(answer.ok, "" if answer.ok else f"{connection.upstream}: status {answer.status}")


async def ask_version(connection: WorkerConnection) -> dict[str, str]:
    """Return the version of the worker's server as a detail; empty if it names none."""
    try:
        answer = await connection.ask("/version")
        reply = read_object(read_json(answer.body, "/version"), "/version") if answer.ok else {}
        version = read_string(reply.get(VERSION, ""), VERSION, LONGEST_VERSION)
    except EngineDead:  # the checks after this one decide whether the worker serves
        return {}
    return {VERSION: quote(version)} if version else {}


async def find_served_model(connection: WorkerConnection, model: LocalModel) -> tuple[str, int]:
    """Return the model's name on the worker and its longest sequence. Raises EngineStartError."""
    answer = await connection.ask(MODELS)
    if not answer.ok:
        raise EngineStartError(
            f"{connection.upstream}{MODELS} answers {answer.status}: "
            f"{extract_message(answer.body)} (--upstream-key?)"
        )
    reply = read_object(read_json(answer.body, MODELS), MODELS)
    entries = [
        read_object(entry, "a model") for entry in read_list(reply.get("data"), "data", MOST_MODELS)
    ]
    models = {
        read_string(entry.get("id"), "a model's id", LONGEST_NAME): _read_length(entry)
        for entry in entries
    }
    if not models:
        raise EngineStartError(f"The worker {connection.upstream} serves no model.")
    name = model.name if model.name in models else next(iter(models))
    max_model_len = models[name] or model.max_model_len
    if not max_model_len:
        raise EngineStartError(
            f"Neither {connection.upstream} nor the model's config says how long a sequence may "
            "be: give --max-model-len."
        )
    return name, min(max_model_len, model.max_model_len or max_model_len)


def _read_length(entry: Mapping[str, Any]) -> int | None:
    length = entry.get("max_model_len")
    return None if length is None else read_integer(length, "max_model_len", 1, MOST_LENGTH)
