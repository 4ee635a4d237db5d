"""Route of POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.chat.request import ChatRequest
from server.apis.chat.response import ChatFold, ChatStream
from server.apis.chat.to_job import make_chat_job
from server.apis.shared.gateway import Gateway
from server.apis.shared.route import GenerationApi, describe_body, respond
from server.errors import openai_body

CHAT = GenerationApi(ChatRequest, make_chat_job, ChatStream, ChatFold, openai_body)


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest))
    async def chat(request: Request) -> Response:
        return await respond(request, gateway, lambda _: CHAT)

    return routes
