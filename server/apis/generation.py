"""Routes of the generation APIs that store nothing: what each is made of, and its paths."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.access.budget import charge
from server.apis.chat.request import ChatRequest
from server.apis.chat.response import ChatFold, ChatStream
from server.apis.chat.to_job import make_chat_job
from server.apis.completions.response import CompletionFold, CompletionStream
from server.apis.completions.to_job import CompletionRequest, make_completion_job
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
from server.errors import InvalidRequest, anthropic_body, openai_body
from server.generation.prompt import render

CHAT = GenerationApi(ChatRequest, make_chat_job, ChatStream, ChatFold, openai_body)
COMPLETIONS = GenerationApi(
    CompletionRequest, make_completion_job, CompletionStream, CompletionFold, openai_body
)
MESSAGES = GenerationApi(
    MessagesRequest, make_messages_job, MessageStream, MessageFold, anthropic_body
)


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest))
    async def chat(request: Request) -> Response:
        return await respond(request, gateway, lambda _: CHAT)

    @routes.post("/v1/completions", openapi_extra=describe_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await respond(request, gateway, lambda _: COMPLETIONS)

    @routes.post("/invocations")
    async def invocations(request: Request) -> Response:
        """For SageMaker, as in vLLM: chat completions where the body has ``messages``,
        completions where it has ``prompt``.
        """
        return await respond(request, gateway, _select)

    _add_messages(routes, gateway)
    return routes


def _add_messages(routes: APIRouter, gateway: Gateway) -> None:
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
