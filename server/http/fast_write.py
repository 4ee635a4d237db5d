"""A body written to its connection at once, without a coroutine per layer for every frame.

ASGI's ``send`` passes one coroutine after another on its way to uvicorn, which then writes to a
transport that takes the bytes without waiting. ``Direct`` finds uvicorn's end of it for the app;
where there is none (another server, uvicorn without httptools, a full connection) the app sends as
ever. Uses what uvicorn 0.54 keeps in ``RequestResponseCycle``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

Write = Callable[[bytes], bool]
"""Writes a part of a body that has begun; False when it has to be sent instead."""

EXTENSION = "eaglegate.write"
CYCLE = ("uvicorn.protocols.http.httptools_impl", "RequestResponseCycle")


class Direct:
    """ASGI middleware, to be the outermost one; leaves a ``Write`` in the scope's extensions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        if (type(cycle).__module__, type(cycle).__name__) == CYCLE:
            scope["extensions"] = {**scope.get("extensions", {}), EXTENSION: writer(cycle)}
        await self._app(scope, receive, send)


def writer(cycle: Any) -> Write:
    """What ``cycle.send`` does with a part of a body, as long as the client keeps up."""
    flow, transport = cycle.flow, cycle.transport

    def write(data: bytes) -> bool:
        if flow.write_paused or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if not cycle.disconnected:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    return write


def found(scope: Scope) -> Write:
    write: Write = scope.get("extensions", {}).get(EXTENSION, nowhere)
    return write


def nowhere(_: bytes) -> bool:
    return False
