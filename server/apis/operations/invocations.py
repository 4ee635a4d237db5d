"""Route of POST /invocations: chat completions or completions, as in SageMaker and vLLM."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.chat.route import CHAT
from server.apis.completions.route import COMPLETIONS
from server.apis.shared.gateway import Gateway
from server.apis.shared.route import GenerationApi, respond
from server.errors import InvalidRequest


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/invocations")
    async def invocations(request: Request) -> Response:
        """Chat completions where the body has ``messages``, completions where it has ``prompt``."""
        return await respond(request, gateway, _select)

    return routes


def _select(body: Any) -> GenerationApi[Any]:
    fields = body if isinstance(body, dict) else {}
    if "messages" in fields:
        return CHAT
    if "prompt" in fields:
        return COMPLETIONS
    raise InvalidRequest(
        "The body needs 'messages', for a chat completion, or 'prompt', for a completion; it has "
        "neither."
    )
