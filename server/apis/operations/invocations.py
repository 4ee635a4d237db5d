"""Route of POST /invocations: chat completions or completions, as in SageMaker and vLLM."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.access.budget import charge
from server.apis.chat import route as chat
from server.apis.completions import route as completions
from server.apis.shared.gateway import Gateway
from server.errors import InvalidRequest
from server.http.body import read_body


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/invocations")
    async def invocations(request: Request) -> Response:
        """Chat completions where the body has ``messages``, completions where it has ``prompt``."""
        arrived = time.perf_counter()
        body = await read_body(request, gateway.max_body_bytes)
        fields = await charge.get().parsed(lambda: _fields(body))
        if "messages" in fields:
            return await chat.respond(body, request.headers, gateway, arrived)
        if "prompt" in fields:
            return await completions.respond(body, request.headers, gateway, arrived)
        raise InvalidRequest(
            "The body needs 'messages', for a chat completion, or 'prompt', for a completion; "
            "it has neither."
        )

    return routes


def _fields(body: bytes) -> frozenset[str]:
    """The names of the body's members; the API itself parses the body."""
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error.msg}.") from None
    return frozenset(given) if isinstance(given, dict) else frozenset()
