"""Conversations and their items, in the same database as the responses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

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

from eaglegate.server.errors import InvalidRequest
from eaglegate.server.store.base import StoredConversation, StoreLimits

Result = TypeVar("Result", covariant=True)

METADATA = MetaData()
CONVERSATIONS = Table(
    "eaglegate_conversations",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("owner", String(256), nullable=False, index=True),
    Column("created", Float, nullable=False),
    Column("used", Float, nullable=False, index=True),
    Column("metadata", Text, nullable=False),
    Column("num_items", Integer, nullable=False),
    Column("num_bytes", Integer, nullable=False),
)
ITEMS = Table(
    "eaglegate_conversation_items",
    METADATA,
    Column("position", Integer, primary_key=True, autoincrement=True),
    Column("conversation", String(64), nullable=False, index=True),
    Column("id", String(64), nullable=False, index=True),
    Column("item", Text, nullable=False),
)


RunQuery = Callable[..., Awaitable[Any]]
"""Runs a query on a database thread: ``run(what, work, *given)``. Raises StoreFailed."""


def remove_old(connection: Connection, oldest: float) -> None:
    """Remove conversations not used since ``oldest``, in Unix time."""
    old_rows = select(CONVERSATIONS.c.id).where(CONVERSATIONS.c.used < oldest)
    connection.execute(delete(ITEMS).where(ITEMS.c.conversation.in_(old_rows)))
    connection.execute(delete(CONVERSATIONS).where(CONVERSATIONS.c.used < oldest))


def find_items(connection: Connection, ids: Sequence[str], owner: str) -> dict[str, dict[str, Any]]:
    """Return items of the owner's conversations by id."""
    is_owned = CONVERSATIONS.c.owner == owner
    table = ITEMS.join(CONVERSATIONS, ITEMS.c.conversation == CONVERSATIONS.c.id)
    items: dict[str, dict[str, Any]] = {}
    for start in range(0, len(ids), 500):
        condition = ITEMS.c.id.in_(ids[start : start + 500])
        query = select(ITEMS.c.id, ITEMS.c.item).select_from(table).where(is_owned, condition)
        items |= {id: orjson.loads(item) for id, item in connection.execute(query)}
    return items


class SqlConversationStore:
    """Stores conversations per owner, and their items in order. All methods raise StoreFailed."""

    def __init__(
        self, engine: Engine, run: RunQuery, limits: StoreLimits, retention_s: float
    ) -> None:
        self._engine = engine
        self._run = run
        self._limits = limits
        self._retention_s = retention_s

    async def put(self, conversation: StoredConversation) -> None:
        """Add a conversation, or replace the metadata of an existing one.

        Raises InvalidRequest if the owner has reached its limit.
        """
        await self._run("stored", self._put, conversation)

    async def get(self, id: str, owner: str) -> StoredConversation | None:
        conversation: StoredConversation | None = await self._run("read", self._get, id, owner)
        return conversation

    async def delete(self, id: str, owner: str) -> bool:
        """Delete a conversation with its items, and return True if it existed."""
        return bool(await self._run("deleted", self._delete, id, owner))

    async def check(self, id: str, items: list[dict[str, Any]], param: str) -> None:
        """Raise InvalidRequest, naming ``param``, if ``items`` do not fit into the conversation."""
        await self._run("read", self._check, id, items, param)

    async def append(self, id: str, items: list[dict[str, Any]], param: str = "items") -> None:
        """Append items, unless the conversation was deleted.

        Raises InvalidRequest, naming ``param``, if they do not fit.
        """
        await self._run("stored", self._append, id, items, param, 1)

    async def append_answer(self, id: str, items: list[dict[str, Any]]) -> None:
        """Append a turn's input and output, which may exceed the conversation's limits up to
        twofold.
        """
        await self._run("stored", self._append, id, items, "conversation", 2)

    async def num_bytes(self, id: str) -> int:
        """Return the approximate size of all items as JSON, in bytes."""
        return int(await self._run("read", self._num_bytes, id))

    async def items(self, id: str) -> list[dict[str, Any]]:
        """Return the conversation's items, oldest first."""
        items: list[dict[str, Any]] = await self._run("read", self._items, id)
        return items

    async def remove(self, id: str, item: str) -> bool:
        """Remove an item, and return True if the conversation contained it."""
        return bool(await self._run("deleted", self._remove, id, item))

    def _put(self, conversation: StoredConversation) -> None:
        changes = {
            "metadata": orjson.dumps(conversation.metadata).decode(),
            "used": time.time(),
        }
        condition = CONVERSATIONS.c.id == conversation.id
        row = changes | {
            "id": conversation.id,
            "owner": conversation.owner,
            "created": conversation.created,
            "num_items": 0,
            "num_bytes": 0,
        }
        with self._engine.begin() as connection:
            if not connection.execute(
                update(CONVERSATIONS).where(condition).values(changes)
            ).rowcount:
                self._check_number(connection, conversation.owner)
                connection.execute(insert(CONVERSATIONS).values(row))

    def _check_owner(
        self, connection: Connection, owner: str, num_bytes: int, is_counted: bool = False
    ) -> None:
        """Raise InvalidRequest if ``num_bytes`` more exceed the owner's limit; ``is_counted`` if
        they are already added.
        """
        total = func.coalesce(func.sum(CONVERSATIONS.c.num_bytes), 0)
        query = select(total).where(CONVERSATIONS.c.owner == owner)
        size = connection.execute(query).scalar_one()
        if size + (0 if is_counted else num_bytes) > self._limits.owner_bytes:
            raise InvalidRequest(
                f"With these {num_bytes} bytes, the conversations of this API key would exceed "
                f"their limit of {self._limits.owner_bytes} bytes. Delete some.",
                code="too_many_conversations",
            )

    def _check_number(self, connection: Connection, owner: str) -> None:
        query = select(func.count()).where(CONVERSATIONS.c.owner == owner)
        if (num := connection.execute(query).scalar_one()) >= self._limits.conversations:
            raise InvalidRequest(
                f"This API key has reached its limit of {num} conversations. Delete "
                "some that are no longer needed.",
                code="too_many_conversations",
            )

    def _get(self, id: str, owner: str) -> StoredConversation | None:
        condition = (CONVERSATIONS.c.id == id) & (CONVERSATIONS.c.owner == owner)
        condition &= CONVERSATIONS.c.used >= time.time() - self._retention_s
        with self._engine.connect() as connection:
            row = connection.execute(select(CONVERSATIONS).where(condition)).mappings().first()
        if row is None:
            return None
        return StoredConversation(id, owner, row["created"], orjson.loads(row["metadata"]))

    def _delete(self, id: str, owner: str) -> bool:
        condition = (CONVERSATIONS.c.id == id) & (CONVERSATIONS.c.owner == owner)
        with self._engine.begin() as connection:
            is_deleted = connection.execute(delete(CONVERSATIONS).where(condition)).rowcount > 0
            if is_deleted:
                connection.execute(delete(ITEMS).where(ITEMS.c.conversation == id))
        return is_deleted

    def _check(self, id: str, items: list[dict[str, Any]], param: str) -> None:
        size = sum(len(orjson.dumps(item)) for item in items)
        with self._engine.connect() as connection:
            row = _select_one(connection, id)
            if row is not None:
                self._check_room(row, len(items), size, param, 1)
                self._check_owner(connection, row.owner, size)

    def _append(self, id: str, items: list[dict[str, Any]], param: str, times: int) -> None:
        texts = [orjson.dumps(item) for item in items]
        size = sum(map(len, texts))
        rows = [
            {"conversation": id, "id": item["id"], "item": text.decode()}
            for item, text in zip(items, texts, strict=True)
        ]
        table = CONVERSATIONS.c
        changes = {
            "used": time.time(),
            "num_items": table.num_items + len(rows),
            "num_bytes": table.num_bytes + size,
        }
        with self._engine.begin() as connection:
            connection.execute(update(CONVERSATIONS).where(table.id == id).values(changes))
            row = _select_one(connection, id)
            if row is None:
                return
            self._check_room(row, 0, 0, param, times)
            if times == 1:
                self._check_owner(connection, row.owner, size, is_counted=True)
            if rows:
                connection.execute(insert(ITEMS), rows)

    def _num_bytes(self, id: str) -> int:
        with self._engine.connect() as connection:
            row = _select_one(connection, id)
        return 0 if row is None else int(row.num_bytes)

    def _check_room(self, row: Any, items: int, size: int, param: str, times: int) -> None:
        """Raise InvalidRequest if the conversation is too large, which rolls back the
        transaction.
        """
        items, size = row.num_items + items, row.num_bytes + size
        limits = self._limits
        if items > times * limits.items or size > times * limits.bytes:
            raise InvalidRequest(
                f"With these items the conversation would have {items} in {size} bytes; it may "
                f"have {limits.items} in {limits.bytes}. Delete items, or start another one.",
                param=param,
                code="conversation_too_large",
            )

    def _items(self, id: str) -> list[dict[str, Any]]:
        query = select(ITEMS.c.item).where(ITEMS.c.conversation == id).order_by(ITEMS.c.position)
        with self._engine.connect() as connection:
            return [orjson.loads(text) for text in connection.execute(query).scalars()]

    def _remove(self, id: str, item: str) -> bool:
        condition = (ITEMS.c.conversation == id) & (ITEMS.c.id == item)
        table = CONVERSATIONS.c
        with self._engine.begin() as connection:
            texts = connection.execute(select(ITEMS.c.item).where(condition)).scalars().all()
            connection.execute(delete(ITEMS).where(condition))
            size = sum(len(text.encode()) for text in texts)
            changes = {
                "num_items": table.num_items - len(texts),
                "num_bytes": table.num_bytes - size,
            }
            connection.execute(update(CONVERSATIONS).where(table.id == id).values(changes))
        return bool(texts)


def _select_one(connection: Connection, id: str) -> Any:
    return connection.execute(select(CONVERSATIONS).where(CONVERSATIONS.c.id == id)).first()
