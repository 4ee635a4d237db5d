"""ASGI middleware: HEAD, the root path, and fast writes of streamed bodies."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

GONE: Message = {"type": "http.disconnect"}


class HeadMiddleware:
    """ASGI middleware. What answers sees a GET whose client leaves once it has the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def receive_or_leave() -> Message:
            return GONE if answered else await receive()

        async def send_head(message: Message) -> None:
            nonlocal answered
            if answered:
                return
            if message["type"] == "http.response.start":
                await send(message)
            else:
                answered = True
                await send({"type": "http.response.body", "body": b""})

        await self._app({**scope, "method": "GET"}, receive_or_leave, send_head)


class RootPathMiddleware:
    """ASGI middleware, to be the outermost one: nothing inside knows of the prefix.

    Some proxies take the prefix off, some leave it; both work.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = "/" + prefix.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._prefix or path.startswith(self._prefix + "/"):
            rest = path[len(self._prefix) :] or "/"
            scope = {**scope, "path": rest, "raw_path": rest.encode()}
        await self._app(scope, receive, send)


class BodyWriter(Protocol):
    """Writes parts of a body that has begun, past ASGI."""

    def is_open(self) -> bool:
        """False when a part has to be sent instead: the client lags, or there is no body yet."""
        ...

    def write(self, data: bytes) -> None:
        """Only where ``is_open`` has just been true."""
        ...


class ClosedWriter:
    """For servers whose connections are unknown: every part has to be sent."""

    def is_open(self) -> bool:
        return False

    def write(self, data: bytes) -> None:  # noqa: ARG002
        raise RuntimeError("the writer is closed")


CLOSED_WRITER = ClosedWriter()

EXTENSION = "eaglegate.write"
CYCLE = ("uvicorn.protocols.http.httptools_impl", "RequestResponseCycle")


class FastWriteMiddleware:
    """ASGI middleware, to be the outermost one; leaves a BodyWriter in the scope's extensions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        if (type(cycle).__module__, type(cycle).__name__) != CYCLE:
            await self._app(scope, receive, send)
            return
        given = scope.get("extensions", {})
        scope["extensions"] = {**given, EXTENSION: CycleWriter(cycle)}
        try:
            await self._app(scope, receive, send)
        finally:
            scope["extensions"] = given  # the cycle has the scope: all of it would be garbage


class CycleWriter:
    """Does what ``cycle.send`` does with a part of a body, as long as the client keeps up."""

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: Any) -> None:
        self._cycle, self._flow, self._transport = cycle, cycle.flow, cycle.transport

    def is_open(self) -> bool:
        cycle = self._cycle
        return not (
            self._flow.write_paused or not cycle.chunked_encoding or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        if data and not self._cycle.disconnected:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def find_writer(scope: Scope) -> BodyWriter:
    writer: BodyWriter = scope.get("extensions", {}).get(EXTENSION, CLOSED_WRITER)
    return writer
