"""HTTP transport for workers, with limits on response heads and on the work of one turn.

httpx reads a response's head in a loop of its own. Endless informational responses (1xx), or many
small chunks in one packet, would keep the event loop busy. ``HeadLimitedStream`` limits the bytes
of a head and of each read; ``TurnBudget`` yields to other requests.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from eaglegate.engine.remote.reading import WorkerProtocolError

MAX_HEAD_BYTES = 64 << 10
"""Most bytes of status line and headers, informational responses before them included."""
HEAD_READ_BYTES = 1 << 10
"""Most bytes of a head that are read in one turn of the event loop."""
TURN_BYTES = 16 << 10
"""Most bytes from a worker that are processed in one turn of the event loop."""
PIECE_COST = 512
EVENT_COST = 1024
"""Fixed cost of one piece and of one event, as a number of bytes."""


class TurnBudget:
    """Budget of work that yields to other tasks when a turn's share is spent."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TURN_BYTES

    async def spend(self, cost: int) -> None:
        self._left -= cost
        if self._left <= 0:
            self._left = TURN_BYTES
            await asyncio.sleep(0)


class WorkerTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over connections whose heads are limited."""

    def __init__(self, limits: httpx.Limits) -> None:
        super().__init__(trust_env=False, limits=limits)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=HeadLimitedBackend(httpcore.AnyIOBackend()),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        stream = response.extensions["network_stream"]
        assert isinstance(stream, HeadLimitedStream)
        stream.end_head()
        return response


class HeadLimitedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return HeadLimitedStream(
            await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        )

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class HeadLimitedStream(httpcore.AsyncNetworkStream):
    """Stream that reads a head in small parts up to a limit, and a body as fast as it arrives."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head: int | None = 0
        """Bytes read of the head; None after its end."""

    def end_head(self) -> None:
        self._head = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._head is None:
            return await self._stream.read(max_bytes, timeout)
        if self._head >= MAX_HEAD_BYTES:
            raise WorkerProtocolError(
                f"an answer has no complete head in its first {MAX_HEAD_BYTES} bytes"
            )
        if self._head:
            await asyncio.sleep(0)  # TLS may already have decrypted more, and would not wait
        data = await self._stream.read(min(max_bytes, HEAD_READ_BYTES), timeout)
        self._head += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._head = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return HeadLimitedStream(
            await self._stream.start_tls(ssl_context, server_hostname, timeout)
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
