"""A proxy before a worker that damages the answers of its streams, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from eaglegate.engine.remote.wire import GENERATE
from eaglegate.engine.types import Sampling
from tests.engine.remote.stand_in_worker import serving
from tests.features.audit import damage

PLACE = 5
VOCABULARY = 2048
KINDS = (
    "replaced", "dropped", "doubled", "another request's", "temperature ignored",
    "a neighbour's count",
)  # fmt: skip


@dataclass
class FaultyWorker:
    """``fault`` is one of ``KINDS``, or empty for sound answers."""

    upstream: str
    fault: str = ""
    previous: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [1])
    """Tokens of the previous answer, and of its steps."""

    def damage(self, tokens: list[int], sizes: list[int]) -> list[int]:
        match self.fault:
            case "replaced":
                return damage.replace_token(tokens, PLACE, VOCABULARY)
            case "dropped":
                return damage.drop_token(tokens, PLACE)
            case "doubled":
                return damage.double_token(tokens, PLACE)
            case "another request's":
                return damage.mix_answers(tokens, self.previous, PLACE)
            case "a neighbour's count":
                return damage.swap_counts(tokens, sizes, self.sizes, self.previous)
        return tokens

    async def stream(self, request: httpx.Request) -> AsyncIterator[bytes]:
        """The whole answer, with other tokens in as many chunks."""
        response = await self.client.send(request)
        lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        choices = [choice for event in events for choice in event["choices"]]
        sizes = [len(choice["token_ids"] or ()) for choice in choices]
        tokens = [token for choice in choices for token in choice["token_ids"] or ()]
        if len(tokens) > 2 * PLACE:
            damaged = iter(self.damage(tokens, sizes))
            for choice, size in zip(choices, sizes, strict=True):
                choice["token_ids"] = [*islice(damaged, size)]
            self.previous, self.sizes = tokens, sizes[::-1]
        for event in events:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def forward(self, request: Request) -> Response:
        content = await request.body()
        fields: dict[str, Any] = json.loads(content) if content else {}
        streams = request.url.path == GENERATE and bool(fields.get("stream"))
        if streams and self.fault == "temperature ignored":
            sampling = Sampling(1, temperature=fields["sampling_params"].get("temperature", 1.0))
            changed = damage.ignore_temperature(sampling).temperature
            fields["sampling_params"]["temperature"] = changed
            content = json.dumps(fields).encode()
        headers = {"content-type": request.headers.get("content-type", "")}
        sent = self.client.build_request(
            request.method, request.url.path, content=content, headers=headers
        )
        if streams:
            return StreamingResponse(self.stream(sent), media_type="text/event-stream")
        response = await self.client.send(sent)
        kind = response.headers.get("content-type")
        return Response(response.content, response.status_code, media_type=kind)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Run the proxy, and yield its address."""
        async with httpx.AsyncClient(base_url=self.upstream, timeout=300) as self.client:
            route = Route("/{path:path}", self.forward, methods=["GET", "POST"])
            async with serving(Starlette(routes=[route])) as url:
                yield url
