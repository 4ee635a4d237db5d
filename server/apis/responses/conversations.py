"""Stored conversations, and references to stored items."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from eaglegate.server.access.caller import Caller
from eaglegate.server.apis.responses.items import REFERENCE, ItemDict, read_items
from eaglegate.server.apis.responses.request import InputItem
from eaglegate.server.apis.shared.fields import Many, Metadata, RequestModel
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.template import MediaPolicy
from eaglegate.server.errors import InvalidRequest, NotFound
from eaglegate.server.store.base import StoredConversation
from eaglegate.server.store.conversations import SqlConversationStore

MAX_ITEMS = 20
"""Maximum number of items per request, as in OpenAI's API."""

ItemsField = Annotated[Many[InputItem], Field(max_length=MAX_ITEMS)]


class ConversationRequest(RequestModel):
    items: ItemsField | None = None
    metadata: Metadata | None = None


class ConversationUpdate(RequestModel):
    metadata: Metadata


class ConversationItems(RequestModel):
    items: Annotated[ItemsField, Field(min_length=1)]


ItemList = list[dict[str, Any]]
PageOrder = Literal["asc", "desc"]
"""Order of a page: oldest or newest first."""


class ConversationsService:
    """Creates, changes and reads the caller's conversations."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def store(self) -> SqlConversationStore:
        """The store of conversations. Raises InvalidRequest if the gateway has none."""
        if self._gateway.store is None:
            raise InvalidRequest(
                "This gateway stores no conversations; it was started with --responses-store none.",
                param="conversation",
            )
        return self._gateway.store.conversations

    async def create(self, request: ConversationRequest, caller: Caller) -> dict[str, Any]:
        id, owner = f"conv_{uuid.uuid4().hex}", caller.owner
        conversation = StoredConversation(id, owner, int(time.time()), request.metadata or {})
        items = await self._read_items(request.items or (), caller)
        await self.store.put(conversation)
        try:
            await self.store.append(id, items)
        except InvalidRequest:
            await self.store.delete(id, owner)
            raise
        return _to_object(conversation)

    async def _read_items(self, items: Sequence[InputItem], caller: Caller) -> ItemList:
        reader = self._gateway.cipher.reader(caller.owner)
        pipeline = self._gateway.pipeline
        image_input = None if pipeline is None else pipeline.served_model.images
        media = MediaPolicy(True, caller.notices, image_input)
        input_items = read_items(items, "items", reader, media)
        return await resolve_references(input_items, self._gateway, caller, param="items")

    async def get(self, id: str, caller: Caller) -> StoredConversation:
        """Return a conversation. Raises NotFound."""
        conversation = await self.store.get(id, caller.owner)
        if conversation is None:
            raise NotFound(f"Conversation with id '{id[:80]}' not found.", param="conversation_id")
        return conversation

    async def describe(self, id: str, caller: Caller) -> dict[str, Any]:
        return _to_object(await self.get(id, caller))

    async def update(self, id: str, request: ConversationUpdate, caller: Caller) -> dict[str, Any]:
        conversation = await self.get(id, caller)
        replacement = StoredConversation(
            id, conversation.owner, conversation.created, request.metadata
        )
        await self.store.put(replacement)
        return _to_object(replacement)

    async def delete(self, id: str, caller: Caller) -> dict[str, Any]:
        await self.get(id, caller)
        await self.store.delete(id, caller.owner)
        return {"id": id, "object": "conversation.deleted", "deleted": True}

    async def items(self, id: str, caller: Caller) -> ItemList:
        """Return the items, oldest first. Raises NotFound."""
        await self.get(id, caller)
        return await self.store.items(id)

    async def history(self, id: str, caller: Caller, added_bytes: int, items: ItemList) -> ItemList:
        """Return the items before a response that adds ``items``, of ``added_bytes`` bytes.

        Raises NotFound, and InvalidRequest if the conversation becomes too large.
        """
        await self.get(id, caller)
        num_bytes = await self.store.num_bytes(id)
        check_history(
            num_bytes + added_bytes, self._gateway.settings.max_body_bytes, "conversation"
        )
        await self.store.check(id, items, "conversation")
        caller.charge.hold(num_bytes)
        return await self.store.items(id)

    async def item(self, id: str, item: str, caller: Caller) -> dict[str, Any]:
        for candidate in await self.items(id, caller):
            if candidate["id"] == item:
                return candidate
        raise NotFound(f"Item with id '{item[:80]}' not found.", param="item_id")

    async def add(self, id: str, request: ConversationItems, caller: Caller) -> dict[str, Any]:
        await self.get(id, caller)
        num_bytes = await self.store.num_bytes(id) + caller.charge.num_bytes
        check_history(num_bytes, self._gateway.settings.max_body_bytes, "items")
        items = await self._read_items(request.items, caller)
        await self.store.append(id, items)
        return make_page(items, len(items), "asc", None)

    async def remove(self, id: str, item: str, caller: Caller) -> dict[str, Any]:
        conversation = await self.get(id, caller)
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


async def resolve_references(
    items: ItemList,
    gateway: Gateway,
    caller: Caller,
    earlier_items: Iterable[ItemDict] = (),
    param: str = "input",
) -> ItemList:
    """Replace references in ``items`` by their items. Raises NotFound and InvalidRequest.

    Items that are in ``earlier_items`` are not repeated.
    """
    references = [item for item in items if item["type"] == REFERENCE]
    if not references:
        return items
    present_ids = {item["id"] for item in earlier_items}
    ids = list(dict.fromkeys(r["id"] for r in references if r["id"] not in present_ids))
    referents = await _find_items(ids, gateway, caller, param)
    for reference in references:
        if reference["id"] not in present_ids and reference["id"] not in referents:
            raise _item_not_found(reference, gateway)
    resolved_items = (
        referents.get(item["id"]) if item["type"] == REFERENCE else item for item in items
    )
    return [item for item in resolved_items if item is not None]


async def _find_items(
    ids: list[str], gateway: Gateway, caller: Caller, param: str
) -> dict[str, dict[str, Any]]:
    if gateway.store is None or not ids:
        return {}
    items = await gateway.store.items(ids, caller.owner, gateway.settings.max_body_bytes)
    num_bytes = sum(len(orjson.dumps(item)) for item in items.values())
    charge = caller.charge
    check_history(num_bytes + charge.num_bytes, gateway.settings.max_body_bytes, param)
    charge.hold(num_bytes)
    return items


def _item_not_found(reference: dict[str, Any], gateway: Gateway) -> NotFound:
    reason = (
        "this gateway stores no responses (--responses-store none)"
        if gateway.store is None
        else "it was not stored, has expired, or belongs to another API key"
    )
    return NotFound(
        f"Item with id '{reference['id']}' not found: {reason}. Send the item itself.",
        param=reference["place"],
        code="item_not_found",
    )


def check_history(num_bytes: int, limit: int, param: str) -> None:
    """Raise InvalidRequest for a history larger than a request may be."""
    if num_bytes > limit:
        raise InvalidRequest(
            f"The conversation has {num_bytes} bytes including this request; the limit is {limit} "
            "(--max-body-bytes). Start a new conversation or delete items.",
            param=param,
            code="context_length_exceeded",
        )


def make_page(items: ItemList, limit: int, order: PageOrder, after: str | None) -> dict[str, Any]:
    """Return one page of ``items``, which are ordered oldest first.

    Raises InvalidRequest if ``after`` is no item: a client that reads page after page would begin
    anew forever.
    """
    ordered_items = items if order == "asc" else items[::-1]
    if after is not None:
        ids = [item["id"] for item in ordered_items]
        if after not in ids:
            raise InvalidRequest(
                f"'after' must be the id of an item in this list; given '{after[:100]}'.",
                param="after",
            )
        ordered_items = ordered_items[ids.index(after) + 1 :]
    page = ordered_items[:limit]
    return {
        "object": "list",
        "data": page,
        "has_more": len(ordered_items) > limit,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
    }
