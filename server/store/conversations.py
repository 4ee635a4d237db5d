"""Conversations and their items, in the database of the responses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

import orjson
from sqlalchemy import (
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection, Engine

from server.store.base import StoredConversation

Result = TypeVar("Result", covariant=True)

METADATA = MetaData()
CONVERSATIONS = Table(
    "eaglegate_conversations",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("owner", String(256), nullable=False),
    Column("created", Float, nullable=False),
    Column("used", Float, nullable=False, index=True),
    Column("metadata", Text, nullable=False),
)
ITEMS = Table(
    "eaglegate_conversation_items",
    METADATA,
    Column("position", Integer, primary_key=True, autoincrement=True),
    Column("conversation", String(64), nullable=False, index=True),
    Column("id", String(64), nullable=False, index=True),
    Column("item", Text, nullable=False),
)


class Run(Protocol):
    """Does ``work`` where the database is used. Raises StoreFailed."""

    def __call__(self, what: str, work: Any, *given: object) -> Awaitable[Any]: ...


def remove_old(connection: Connection, oldest: float) -> None:
    """What nobody has used since ``oldest``, in Unix time."""
    old = select(CONVERSATIONS.c.id).where(CONVERSATIONS.c.used < oldest)
    connection.execute(delete(ITEMS).where(ITEMS.c.conversation.in_(old)))
    connection.execute(delete(CONVERSATIONS).where(CONVERSATIONS.c.used < oldest))


def items_named(
    connection: Connection, ids: Sequence[str], owner: str
) -> dict[str, dict[str, Any]]:
    """Items of the owner's conversations, by id."""
    mine = CONVERSATIONS.c.owner == owner
    joined = ITEMS.join(CONVERSATIONS, ITEMS.c.conversation == CONVERSATIONS.c.id)
    found: dict[str, dict[str, Any]] = {}
    for at in range(0, len(ids), 500):
        some = ITEMS.c.id.in_(ids[at : at + 500])
        wanted = select(ITEMS.c.id, ITEMS.c.item).select_from(joined).where(mine, some)
        found |= {id: orjson.loads(item) for id, item in connection.execute(wanted)}
    return found


class SqlConversations:
    """See ``server.store.base.ConversationStore``."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine = engine
        self._run = run

    async def put(self, conversation: StoredConversation) -> None:
        await self._run("stored", self._put, conversation)

    async def get(self, id: str, owner: str) -> StoredConversation | None:
        found: StoredConversation | None = await self._run("read", self._get, id, owner)
        return found

    async def delete(self, id: str, owner: str) -> bool:
        return bool(await self._run("deleted", self._delete, id, owner))

    async def append(self, id: str, items: list[dict[str, Any]]) -> None:
        await self._run("stored", self._append, id, items)

    async def num_bytes(self, id: str) -> int:
        return int(await self._run("read", self._num_bytes, id))

    async def items(self, id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._run("read", self._items, id)
        return found

    async def remove(self, id: str, item: str) -> bool:
        return bool(await self._run("deleted", self._remove, id, item))

    def _put(self, conversation: StoredConversation) -> None:
        told = {
            "metadata": orjson.dumps(conversation.metadata).decode(),
            "used": time.time(),
        }
        mine = CONVERSATIONS.c.id == conversation.id
        row = told | {
            "id": conversation.id,
            "owner": conversation.owner,
            "created": conversation.created,
        }
        with self._engine.begin() as connection:
            if not connection.execute(update(CONVERSATIONS).where(mine).values(told)).rowcount:
                connection.execute(insert(CONVERSATIONS).values(row))

    def _get(self, id: str, owner: str) -> StoredConversation | None:
        mine = (CONVERSATIONS.c.id == id) & (CONVERSATIONS.c.owner == owner)
        with self._engine.connect() as connection:
            row = connection.execute(select(CONVERSATIONS).where(mine)).mappings().first()
        if row is None:
            return None
        return StoredConversation(id, owner, row["created"], orjson.loads(row["metadata"]))

    def _delete(self, id: str, owner: str) -> bool:
        mine = (CONVERSATIONS.c.id == id) & (CONVERSATIONS.c.owner == owner)
        with self._engine.begin() as connection:
            found = connection.execute(delete(CONVERSATIONS).where(mine)).rowcount > 0
            if found:
                connection.execute(delete(ITEMS).where(ITEMS.c.conversation == id))
        return found

    def _append(self, id: str, items: list[dict[str, Any]]) -> None:
        rows = [
            {"conversation": id, "id": item["id"], "item": orjson.dumps(item).decode()}
            for item in items
        ]
        used = update(CONVERSATIONS).where(CONVERSATIONS.c.id == id).values(used=time.time())
        with self._engine.begin() as connection:
            if connection.execute(used).rowcount and rows:
                connection.execute(insert(ITEMS), rows)

    def _num_bytes(self, id: str) -> int:
        """In characters of JSON, as databases count text."""
        size = select(func.coalesce(func.sum(func.length(ITEMS.c.item)), 0))
        with self._engine.connect() as connection:
            return int(connection.execute(size.where(ITEMS.c.conversation == id)).scalar_one())

    def _items(self, id: str) -> list[dict[str, Any]]:
        wanted = select(ITEMS.c.item).where(ITEMS.c.conversation == id).order_by(ITEMS.c.position)
        with self._engine.connect() as connection:
            return [orjson.loads(text) for text in connection.execute(wanted).scalars()]

    def _remove(self, id: str, item: str) -> bool:
        one = (ITEMS.c.conversation == id) & (ITEMS.c.id == item)
        with self._engine.begin() as connection:
            return connection.execute(delete(ITEMS).where(one)).rowcount > 0
