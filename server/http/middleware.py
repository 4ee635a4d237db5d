"""ASGI middleware for HEAD and root paths, and access to the client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

GONE: Message = {"type": "http.disconnect"}


class HeadMiddleware:
    """ASGI middleware that answers HEAD as a GET whose client disconnects after the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return self._app(scope, receive, send)
        return self._answer_head(scope, receive, send)

    async def _answer_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_answered = False

        async def receive_or_leave() -> Message:
            return GONE if has_answered else await receive()

        async def send_head(message: Message) -> None:
            nonlocal has_answered
            if has_answered:
                return
            if message["type"] == "http.response.start":
                await send(message)
            else:
                has_answered = True
                await send({"type": "http.response.body", "body": b""})

        await self._app({**scope, "method": "GET"}, receive_or_leave, send_head)


class RootPathMiddleware:
    """ASGI middleware that removes the root path, so that nothing inside knows it.

    Some proxies remove the prefix themselves, others keep it; both work. It must be the outermost
    middleware.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = "/" + prefix.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._prefix or path.startswith(self._prefix + "/"):
            subpath = path[len(self._prefix) :] or "/"
            scope = {**scope, "path": subpath, "raw_path": subpath.encode()}
        await self._app(scope, receive, send)


class BodyWriter(Protocol):
    """Writes parts of a started body directly to the transport, and watches the client's
    connection.
    """

    def is_open(self) -> bool:
        """Return False if a part must be sent through ASGI: the client lags, or the body has not
        started.
        """
        ...

    def write(self, data: bytes) -> None:
        """Write to the transport. Call it only directly after ``is_open`` returned True."""
        ...

    def has_request(self) -> bool:
        """Return True if the whole request body has arrived; False if that is unknown."""
        ...

    def watch(self, leave: Callable[[], None]) -> bool:
        """Call ``leave`` if the client disconnects before ``unwatch``. Return False if that cannot
        be watched.
        """
        ...

    def unwatch(self) -> None: ...


class ClosedWriter:
    """Writer for unknown servers, where every part must be sent through ASGI."""

    def is_open(self) -> bool:
        return False

    def write(self, data: bytes) -> None:  # noqa: ARG002
        raise RuntimeError("the writer is closed")

    def has_request(self) -> bool:
        return False

    def watch(self, leave: Callable[[], None]) -> bool:  # noqa: ARG002
        return False

    def unwatch(self) -> None: ...


CLOSED_WRITER = ClosedWriter()

EXTENSION = "eaglegate.write"
CYCLE = ("uvicorn.protocols.http.httptools_impl", "RequestResponseCycle")


class FastWriteMiddleware:
    """Outermost ASGI middleware, which puts a BodyWriter into the scope's extensions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        kind = type(cycle)
        if (kind.__module__, kind.__name__) != CYCLE:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["http_version"] == "1.0":
            await self._app(scope, receive, close_delimited(cycle, send))
            return
        extensions = scope.get("extensions", {})
        scope["extensions"] = {**extensions, EXTENSION: CycleWriter(cycle)}
        try:
            await self._app(scope, receive, send)
        finally:
            scope["extensions"] = extensions  # breaks a reference cycle: the cycle has the scope


def close_delimited(cycle: Any, send: Send) -> Send:
    """Return a ``send`` that writes bodies of unknown length without chunks.

    HTTP/1.0 clients do not know chunks; the end of the connection ends the body.
    """
    is_unbounded = False

    async def send_plain(message: Message) -> None:
        nonlocal is_unbounded
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            is_unbounded = b"content-length" not in names
            if is_unbounded:
                cycle.chunked_encoding = False
        elif is_unbounded:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_plain


class CycleWriter:
    """Writes as ``cycle.send`` would, as long as the client keeps up."""

    __slots__ = ("_cycle", "_flow", "_transport", "_watched")

    def __init__(self, cycle: Any) -> None:
        self._cycle, self._flow, self._transport = cycle, cycle.flow, cycle.transport
        connection = getattr(cycle.on_response, "__self__", None)
        self._watched: dict[Any, Callable[[], None]] | None = getattr(connection, "watched", None)

    def is_open(self) -> bool:
        cycle = self._cycle
        return not (
            self._flow.write_paused or not cycle.chunked_encoding or cycle.response_complete
        )

    def write(self, data: bytes) -> None:
        if data and not self._cycle.disconnected:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def has_request(self) -> bool:
        return not self._cycle.more_body

    def watch(self, leave: Callable[[], None]) -> bool:
        cycle = self._cycle
        if self._watched is None or cycle.disconnected or cycle.more_body:
            return False
        if cycle.scope["method"] == "HEAD":  # its client disconnects after the headers
            return False
        self._flow.resume_reading()
        self._watched[cycle] = leave
        return True

    def unwatch(self) -> None:
        if self._watched is not None:
            self._watched.pop(self._cycle, None)


def find_writer(scope: Scope) -> BodyWriter:
    writer: BodyWriter = scope.get("extensions", {}).get(EXTENSION, CLOSED_WRITER)
    return writer


class WhileConnected:
    """Context manager whose task is cancelled when the client disconnects."""

    def __init__(self, receive: Receive, writer: BodyWriter) -> None:
        self._receive = receive
        self._writer = writer
        self._watcher: asyncio.Task[None] | None = None
        self._ended = self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        if not self._writer.watch(self._leave):
            self._watcher = asyncio.create_task(_wait_for_disconnect(self._receive))
            self._watcher.add_done_callback(self._end_watch)

    def _end_watch(self, watcher: asyncio.Task[None]) -> None:
        if not self._ended and not watcher.cancelled():
            watcher.exception()
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._ended = True
        self._writer.unwatch()
        if self._watcher is not None:
            self._watcher.cancel()
        is_handled = self._gone and not self._task.uncancel() and kind is asyncio.CancelledError
        if self._gone and self._watcher is None:
            await self._receive()  # report the disconnect to outer middleware, too
        return is_handled


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
