"""A path prefix that a proxy serves this gateway under (``--root-path``)."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
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
