"""/v1/conversations: items that responses read first and add to."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from server.access.budget import charge
from server.apis.responses.conversation_request import (
    ConversationItems,
    ConversationRequest,
    ConversationUpdate,
)
from server.apis.responses.items import read_items
from server.apis.responses.listing import ItemList, make_page
from server.apis.responses.references import check_history, resolve_references
from server.apis.responses.request import InputItem
from server.apis.shared.gateway import Gateway
from server.apis.shared.request import Model, parse
from server.apis.shared.route import admit, describe_body
from server.errors import InvalidRequest, NotFound
from server.http.body import read_body
from server.http.response import json_response
from server.store.base import ConversationStore, StoredConversation


class ConversationsService:
    """The conversations of whoever asks."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def store(self) -> ConversationStore:
        """Raises InvalidRequest where nothing is stored."""
        if self._gateway.store is None:
            raise InvalidRequest(
                "This gateway stores no conversations; it was started with --responses-store none.",
                param="conversation",
            )
        return self._gateway.store.conversations

    async def create(self, asked: ConversationRequest) -> dict[str, Any]:
        id, owner = f"conv_{uuid.uuid4().hex}", self._gateway.owner()
        made = StoredConversation(id, owner, int(time.time()), asked.metadata or {})
        items = await self._given(asked.items or ())
        await self.store.put(made)
        try:
            await self.store.append(id, items)
        except InvalidRequest:
            await self.store.delete(id, owner)
            raise
        return _to_object(made)

    async def _given(self, items: Sequence[InputItem]) -> ItemList:
        reader = self._gateway.cipher.reader(self._gateway.owner())
        return await resolve_references(
            read_items(items, "items", reader), self._gateway, param="items"
        )

    async def get(self, id: str) -> StoredConversation:
        """Raises NotFound."""
        found = await self.store.get(id, self._gateway.owner())
        if found is None:
            raise NotFound(f"Conversation with id '{id[:80]}' not found.", param="conversation_id")
        return found

    async def update(self, id: str, asked: ConversationUpdate) -> dict[str, Any]:
        old = await self.get(id)
        new = StoredConversation(id, old.owner, old.created, asked.metadata)
        await self.store.put(new)
        return _to_object(new)

    async def delete(self, id: str) -> dict[str, Any]:
        await self.get(id)
        await self.store.delete(id, self._gateway.owner())
        return {"id": id, "object": "conversation.deleted", "deleted": True}

    async def items(self, id: str) -> ItemList:
        """The oldest first. Raises NotFound."""
        await self.get(id)
        return await self.store.items(id)

    async def history(self, id: str, more: int, given: ItemList) -> ItemList:
        """What a response reads first, ``given`` in ``more`` bytes to be added. Raises NotFound."""
        await self.get(id)
        num_bytes = await self.store.num_bytes(id)
        check_history(num_bytes + more, self._gateway.max_body_bytes, "conversation")
        await self.store.check(id, given, "conversation")
        charge.get().hold(num_bytes)
        return await self.store.items(id)

    async def item(self, id: str, item: str) -> dict[str, Any]:
        for one in await self.items(id):
            if one["id"] == item:
                return one
        raise NotFound(f"Item with id '{item[:80]}' not found.", param="item_id")

    async def add(self, id: str, asked: ConversationItems) -> dict[str, Any]:
        await self.get(id)
        num_bytes = await self.store.num_bytes(id) + charge.get().num_bytes
        check_history(num_bytes, self._gateway.max_body_bytes, "items")
        items = await self._given(asked.items)
        await self.store.append(id, items)
        return make_page(items, len(items), "asc", None)

    async def remove(self, id: str, item: str) -> dict[str, Any]:
        conversation = await self.get(id)
        if not await self.store.remove(id, item):
            raise NotFound(f"Item with id '{item[:80]}' not found.", param="item_id")
        return _to_object(conversation)


def _to_object(conversation: StoredConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created),
        "metadata": conversation.metadata,
    }


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()
    desk = ConversationsService(gateway)

    async def read(request: Request, model: type[Model]) -> Model:
        body = await read_body(request, gateway.max_body_bytes)
        return await charge.get().parsed(lambda: parse(body or b"{}", model))

    def admission() -> AbstractAsyncContextManager[None]:
        return admit(gateway.require(), time.perf_counter())

    @routes.post("/v1/conversations", openapi_extra=describe_body(ConversationRequest))
    async def create(request: Request) -> dict[str, Any]:
        async with admission():
            return await desk.create(await read(request, ConversationRequest))

    @routes.get("/v1/conversations/{conversation_id}")
    async def get(conversation_id: str) -> dict[str, Any]:
        return _to_object(await desk.get(conversation_id))

    @routes.post(
        "/v1/conversations/{conversation_id}", openapi_extra=describe_body(ConversationUpdate)
    )
    async def update(conversation_id: str, request: Request) -> dict[str, Any]:
        async with admission():
            return await desk.update(conversation_id, await read(request, ConversationUpdate))

    @routes.delete("/v1/conversations/{conversation_id}")
    async def delete(conversation_id: str) -> dict[str, Any]:
        return await desk.delete(conversation_id)

    @routes.get("/v1/conversations/{conversation_id}/items", response_model=None)
    async def items(
        conversation_id: str,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: str = "desc",
        after: str | None = None,
    ) -> Response:
        return json_response(make_page(await desk.items(conversation_id), limit, order, after))

    @routes.post(
        "/v1/conversations/{conversation_id}/items",
        openapi_extra=describe_body(ConversationItems),
        response_model=None,
    )
    async def add(conversation_id: str, request: Request) -> Response:
        async with admission():
            asked = await read(request, ConversationItems)
            return json_response(await desk.add(conversation_id, asked))

    @routes.get("/v1/conversations/{conversation_id}/items/{item_id}", response_model=None)
    async def item(conversation_id: str, item_id: str) -> Response:
        return json_response(await desk.item(conversation_id, item_id))

    @routes.delete("/v1/conversations/{conversation_id}/items/{item_id}")
    async def remove(conversation_id: str, item_id: str) -> dict[str, Any]:
        return await desk.remove(conversation_id, item_id)

    return routes
