"""Route of POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.access.budget import charge
from server.apis.chat.request import ChatRequest
from server.apis.chat.response import ChatFold, ChatStream
from server.apis.chat.to_job import make_chat_job
from server.apis.shared.gateway import Gateway
from server.apis.shared.request import parse
from server.apis.shared.route import WORKLOAD_HEADER, AnswerFormat, answer, describe_body
from server.errors import openai_body
from server.http.body import read_body

CHAT = AnswerFormat(ChatStream, ChatFold, openai_body)


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest))
    async def chat(request: Request) -> Response:
        arrived = time.perf_counter()
        body = await read_body(request, gateway.max_body_bytes)
        return await respond(body, request.headers, gateway, arrived)

    return routes


async def respond(
    body: bytes, headers: Mapping[str, str], gateway: Gateway, arrived: float
) -> Response:
    path = gateway.require()
    named = headers.get(WORKLOAD_HEADER)
    job = await charge.get().parsed(
        lambda: make_chat_job(parse(body, ChatRequest), path.served, named)
    )
    return answer(job, path, gateway, CHAT, arrived)
