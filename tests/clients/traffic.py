"""A pass-through between a client and the gateway that keeps what was asked and answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
METHODS = ["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"]


@dataclass
class Exchange:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)
    answer_headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.method} {self.path} -> {self.status} {bytes(self.answer[:600])!r}"


@dataclass
class Traffic:
    """The exchanges between one client and one gateway."""

    target: str
    exchanges: list[Exchange] = field(default_factory=list)
    expects_refusals: bool = False
    """A test about a refusal says so; any other fails when something was refused."""

    def to(self, path: str) -> list[Exchange]:
        """Exchanges whose path ends so."""
        return [one for one in self.exchanges if one.path.partition("?")[0].endswith(path)]

    @property
    def refused(self) -> list[str]:
        """4xx and 5xx answers to anything but a look-up of something optional."""
        return [
            str(one)
            for one in self.exchanges
            if one.status >= 400 and not (one.status == 404 and one.method in ("GET", "HEAD"))
        ]

    async def forward(self, request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        exchange = Exchange(request.method, path, headers, await request.body())
        self.exchanges.append(exchange)
        client: httpx.AsyncClient = request.app.state.client
        asked = client.build_request(
            request.method, self.target + path, headers=headers, content=exchange.body
        )
        answer = await client.send(asked, stream=True)
        exchange.status = answer.status_code
        exchange.answer_headers = dict(answer.headers)
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
        body = self._keep(answer, exchange)
        return StreamingResponse(
            body, answer.status_code, kept, background=BackgroundTask(answer.aclose)
        )

    async def _keep(self, answer: httpx.Response, exchange: Exchange) -> AsyncIterator[bytes]:
        async for piece in answer.aiter_raw():
            exchange.answer += piece
            yield piece

    def app(self) -> Starlette:
        app = Starlette(routes=[Route("/{path:path}", self.forward, methods=METHODS)])
        app.state.client = httpx.AsyncClient(timeout=None)
        return app
