"""Routes of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.access.budget import charge
from server.apis.messages.request import CountTokensRequest, MessagesRequest
from server.apis.messages.response import MessageFold, MessageStream
from server.apis.messages.to_job import make_counted_conversation, make_messages_job
from server.apis.shared.gateway import Gateway
from server.apis.shared.request import parse, read_body
from server.apis.shared.route import (
    GenerationApi,
    count_prompt_tokens,
    describe_body,
    respond,
)
from server.errors import anthropic_body
from server.generation.prompt import render

MESSAGES = GenerationApi(
    MessagesRequest, make_messages_job, MessageStream, MessageFold, anthropic_body
)


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/messages", openapi_extra=describe_body(MessagesRequest))
    async def messages(request: Request) -> Response:
        return await respond(request, gateway, lambda _: MESSAGES)

    @routes.post("/v1/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
    async def count_tokens(request: Request) -> dict[str, int]:
        arrived = time.perf_counter()
        body = await read_body(request, gateway.max_body_bytes)
        path = gateway.require()
        talk = await charge.get().parse(
            lambda: make_counted_conversation(parse(body, CountTokensRequest), path.served)
        )
        tokens = await count_prompt_tokens(
            path, "messages", arrived, lambda limits: render(talk, path.renderer, limits)
        )
        return {"input_tokens": len(tokens)}

    return routes
