"""HEAD wherever GET works: the same status and headers, and no body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

GONE: Message = {"type": "http.disconnect"}


class Head:
    """ASGI middleware. What answers sees a GET whose client leaves once it has the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def heard() -> Message:
            return GONE if answered else await receive()

        async def said(message: Message) -> None:
            nonlocal answered
            if answered:
                return
            if message["type"] == "http.response.start":
                await send(message)
            else:
                answered = True
                await send({"type": "http.response.body", "body": b""})

        await self._app({**scope, "method": "GET"}, heard, said)
