"""Routes of /v1/responses and /v1/conversations."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from eaglegate.server.access.caller import Caller
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
from eaglegate.server.apis.shared.request import read_model
from eaglegate.server.apis.shared.route import CallerOf, admit
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
        caller: CallerOf,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1)] = -1,
        include_obfuscation: bool = False,
    ) -> Response:
        if stream:
            return await service.stream(response_id, caller, starting_after, include_obfuscation)
        return _respond_stored(caller, await service.get(response_id, caller))

    @routes.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, caller: CallerOf) -> dict[str, Any]:
        return await service.delete(response_id, caller)

    @routes.post("/v1/responses/{response_id}/cancel", response_model=None)
    async def cancel(response_id: str, caller: CallerOf) -> Response:
        return _respond_stored(caller, await service.cancel(response_id, caller))

    @routes.get("/v1/responses/{response_id}/input_items", response_model=None)
    async def items(
        response_id: str,
        caller: CallerOf,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: PageOrder = "desc",
        after: str | None = None,
    ) -> Response:
        records = await service.items(response_id, caller)
        return _respond_stored(caller, make_page(records, limit, order, after))

    _add_conversations(routes, gateway)
    _add_conversation_items(routes, gateway)
    return routes


def _add_conversations(routes: APIRouter, gateway: Gateway) -> None:
    conversations = ConversationsService(gateway)

    @routes.post("/v1/conversations", openapi_extra=describe_body(ConversationRequest))
    async def create(request: Request, caller: CallerOf) -> dict[str, Any]:
        async with _admit(gateway, caller):
            body = await read_model(request, gateway, ConversationRequest, b"{}")
            return await conversations.create(body, caller)

    @routes.get("/v1/conversations/{conversation_id}")
    async def get(conversation_id: str, caller: CallerOf) -> dict[str, Any]:
        return await conversations.describe(conversation_id, caller)

    @routes.post(
        "/v1/conversations/{conversation_id}", openapi_extra=describe_body(ConversationUpdate)
    )
    async def update(conversation_id: str, request: Request, caller: CallerOf) -> dict[str, Any]:
        async with _admit(gateway, caller):
            body = await read_model(request, gateway, ConversationUpdate, b"{}")
            return await conversations.update(conversation_id, body, caller)

    @routes.delete("/v1/conversations/{conversation_id}")
    async def delete(conversation_id: str, caller: CallerOf) -> dict[str, Any]:
        return await conversations.delete(conversation_id, caller)


def _add_conversation_items(routes: APIRouter, gateway: Gateway) -> None:
    conversations = ConversationsService(gateway)

    @routes.get("/v1/conversations/{conversation_id}/items", response_model=None)
    async def items(
        conversation_id: str,
        caller: CallerOf,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: PageOrder = "desc",
        after: str | None = None,
    ) -> Response:
        records = await conversations.items(conversation_id, caller)
        return _respond_stored(caller, make_page(records, limit, order, after))

    @routes.post(
        "/v1/conversations/{conversation_id}/items",
        openapi_extra=describe_body(ConversationItems),
        response_model=None,
    )
    async def add(conversation_id: str, request: Request, caller: CallerOf) -> Response:
        async with _admit(gateway, caller):
            body = await read_model(request, gateway, ConversationItems, b"{}")
            return json_response(await conversations.add(conversation_id, body, caller))

    @routes.get("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
    async def item(conversation_id: str, item_id: str, caller: CallerOf) -> Response:
        return _respond_stored(caller, await conversations.item(conversation_id, item_id, caller))

    @routes.delete("/v1/conversations/{conversation_id}/items/{item_id}")
    async def remove(conversation_id: str, item_id: str, caller: CallerOf) -> dict[str, Any]:
        return await conversations.remove(conversation_id, item_id, caller)


def _respond_stored(caller: Caller, content: dict[str, Any]) -> Response:
    """Respond with a stored object, and charge its bytes while a slow client reads them.

    Raises TooManyRequests.
    """
    response = json_response(content)
    caller.charge.hold_stored(len(response.body))
    return response


def _admit(gateway: Gateway, caller: Caller) -> AbstractAsyncContextManager[None]:
    return admit(gateway.require(), caller, time.perf_counter())
