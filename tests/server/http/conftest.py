"""A server on a socket of its own, as ``eaglegate serve`` starts it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from eaglegate.server.cli.listener import GatewayServer
from eaglegate.server.http.connection import TlsSettings, make_server_config
from eaglegate.server.http.connection_limits import LIMITS, ConnectionLimiter, ConnectionLimits
from tests.server.conftest import wait_until


@asynccontextmanager
async def serve_app(
    app: ASGIApp,
    limits: ConnectionLimits | ConnectionLimiter = LIMITS,
    tls: TlsSettings | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """The app on a port of the loopback: the address, until the block ends."""
    limiter = limits if isinstance(limits, ConnectionLimiter) else ConnectionLimiter(limits)
    proxies = () if isinstance(limits, ConnectionLimiter) else limits.proxies
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = make_server_config(app, tls or TlsSettings(), proxies)
        server = GatewayServer(config, limiter)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await wait_until(lambda: server.started)
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            await task
