"""Routes of /v1/responses and /v1/conversations."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from eaglegate.server.access.budget import current_charge
from eaglegate.server.apis.responses.background import BackgroundRuns
from eaglegate.server.apis.responses.conversations import (
    ConversationItems,
    ConversationRequest,
    ConversationsService,
    ConversationUpdate,
    PageOrder,
    make_page,
)
from eaglegate.server.apis.responses.request import ResponsesRequest
from eaglegate.server.apis.responses.service import ResponsesService
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.openapi import describe_body
from eaglegate.server.apis.shared.request import Model, parse, read_body
from eaglegate.server.apis.shared.route import admit
from eaglegate.server.errors import NotFound
from eaglegate.server.http.response import json_response


def router(gateway: Gateway, runs: BackgroundRuns) -> APIRouter:
    routes = APIRouter()
    service = ResponsesService(gateway, runs)

    @routes.post("/v1/responses", openapi_extra=describe_body(ResponsesRequest))
    async def create(request: Request) -> Response:
        return await service.create(request, time.perf_counter())

    @routes.post("/v1/responses/input_tokens", openapi_extra=describe_body(ResponsesRequest))
    async def count_tokens(request: Request) -> dict[str, Any]:
        """Count the tokens of a prompt without generating."""
        return await service.count_tokens(request, time.perf_counter())

    @routes.post("/v1/responses/compact", include_in_schema=False)
    async def compact() -> None:
        raise NotFound(
            "There is no POST /v1/responses/compact: this gateway summarizes no conversations. Ask "
            "for a summary in a message."
        )

    @routes.get("/v1/responses/{response_id}", response_model=None)
    async def get(
        response_id: str,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1)] = -1,
        include_obfuscation: bool = False,
    ) -> Response:
        if stream:
            return await service.stream(response_id, starting_after, include_obfuscation)
        return _respond_stored(await service.get(response_id))

    @routes.delete("/v1/responses/{response_id}")
    async def delete(response_id: str) -> dict[str, Any]:
        return await service.delete(response_id)

    @routes.post("/v1/responses/{response_id}/cancel", response_model=None)
    async def cancel(response_id: str) -> Response:
        return _respond_stored(await service.cancel(response_id))

    @routes.get("/v1/responses/{response_id}/input_items", response_model=None)
    async def items(
        response_id: str,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: PageOrder = "desc",
        after: str | None = None,
    ) -> Response:
        return _respond_stored(make_page(await service.items(response_id), limit, order, after))

    _add_conversations(routes, gateway)
    _add_conversation_items(routes, gateway)
    return routes


def _add_conversations(routes: APIRouter, gateway: Gateway) -> None:
    conversations = ConversationsService(gateway)

    @routes.post("/v1/conversations", openapi_extra=describe_body(ConversationRequest))
    async def create(request: Request) -> dict[str, Any]:
        async with _admit(gateway):
            return await conversations.create(await _read(request, gateway, ConversationRequest))

    @routes.get("/v1/conversations/{conversation_id}")
    async def get(conversation_id: str) -> dict[str, Any]:
        return await conversations.describe(conversation_id)

    @routes.post(
        "/v1/conversations/{conversation_id}", openapi_extra=describe_body(ConversationUpdate)
    )
    async def update(conversation_id: str, request: Request) -> dict[str, Any]:
        async with _admit(gateway):
            body = await _read(request, gateway, ConversationUpdate)
            return await conversations.update(conversation_id, body)

    @routes.delete("/v1/conversations/{conversation_id}")
    async def delete(conversation_id: str) -> dict[str, Any]:
        return await conversations.delete(conversation_id)


def _add_conversation_items(routes: APIRouter, gateway: Gateway) -> None:
    conversations = ConversationsService(gateway)

    @routes.get("/v1/conversations/{conversation_id}/items", response_model=None)
    async def items(
        conversation_id: str,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: PageOrder = "desc",
        after: str | None = None,
    ) -> Response:
        records = await conversations.items(conversation_id)
        return _respond_stored(make_page(records, limit, order, after))

    @routes.post(
        "/v1/conversations/{conversation_id}/items",
        openapi_extra=describe_body(ConversationItems),
        response_model=None,
    )
    async def add(conversation_id: str, request: Request) -> Response:
        async with _admit(gateway):
            body = await _read(request, gateway, ConversationItems)
            return json_response(await conversations.add(conversation_id, body))

    @routes.get("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
    async def item(conversation_id: str, item_id: str) -> Response:
        return _respond_stored(await conversations.item(conversation_id, item_id))

    @routes.delete("/v1/conversations/{conversation_id}/items/{item_id}")
    async def remove(conversation_id: str, item_id: str) -> dict[str, Any]:
        return await conversations.remove(conversation_id, item_id)


def _respond_stored(content: dict[str, Any]) -> Response:
    """Respond with a stored object, and charge its bytes while a slow client reads them.

    Raises TooManyRequests.
    """
    response = json_response(content)
    current_charge.get().hold_stored(len(response.body))
    return response


def _admit(gateway: Gateway) -> AbstractAsyncContextManager[None]:
    return admit(gateway.require(), time.perf_counter())


async def _read(request: Request, gateway: Gateway, model: type[Model]) -> Model:
    body = await read_body(request, gateway.settings.max_body_bytes)
    return await current_charge.get().parse(lambda: parse(body or b"{}", model))
