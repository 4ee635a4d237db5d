"""Storage of responses in SQL: an SQLite file by default, or any database that SQLAlchemy
supports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson
from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from eaglegate.server.errors import StoreFailed
from eaglegate.server.store import conversations, items
from eaglegate.server.store.base import Retention, StoredResponse, StoreLimits
from eaglegate.server.store.database import (
    StoreError,
    check_columns,
    connect,
    enable_shrinking,
    hide_password,
    hide_secrets,
)

log = logging.getLogger(__name__)

Result = TypeVar("Result")

SWEEP_EVERY = 100
"""Number of stored responses between two sweeps."""
SWEEP_BYTES = 64 << 20
SWEEP_SHARE = 16
"""A sweep also runs after ``SWEEP_BYTES``, or after ``1 / SWEEP_SHARE`` of the smaller retention
limit.
"""
LONGEST_HISTORY = 1000
"""Maximum length of a chain of responses linked by previous_response_id."""
CONNECTIONS = 8
"""Concurrent connections to a database server."""

METADATA = MetaData()
RESPONSES = Table(
    "eaglegate_responses",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("owner", String(256), nullable=False),
    Column("created", Float, nullable=False, index=True),
    Column("previous", String(64)),
    Column("response", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("held_until", Float),
    Column("size", Integer, nullable=False),
    Column("output", Text),
    Column("num_bytes", Integer, nullable=False),
    Index("eaglegate_responses_usage", "owner", "created", "num_bytes"),
)
"""``output`` is stored separately from the response, because readers of the history do not need the
response's other members, such as its tools. ``size`` is that of input and output, ``num_bytes``
that of all three columns.
"""


class SqlResponseStore:
    """Stores responses per owner; owners cannot see each other's. All methods raise StoreFailed.

    Calls run in separate threads: one thread for SQLite, whose connection handles one call at a
    time. ``conversations`` are stored in the same database.
    """

    def __init__(
        self, url: str, retention: Retention | None = None, limits: StoreLimits | None = None
    ) -> None:
        """Open the store, creating missing tables. Raises StoreError."""
        self._retention = retention or Retention()
        self._limits = limits or StoreLimits()
        self._puts = self._bytes_put = 0
        self._url = url
        try:
            self._engine = connect(url)
            _prepare(self._engine)
        except (SQLAlchemyError, ImportError, OSError, ValueError, TypeError) as error:
            reason = hide_secrets(str(error), url)
            raise StoreError(
                f"responses cannot be stored at {hide_password(url)}: {reason}"
            ) from None
        workers = 1 if self._engine.dialect.name == "sqlite" else CONNECTIONS
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="responses")
        self._sweep()
        self.conversations = conversations.SqlConversationStore(
            self._engine, self._run, self._limits, self._retention.seconds
        )

    async def put(self, record: StoredResponse) -> None:
        """Add a response, or replace the one with the same id."""
        await self._run("stored", self._put, record)

    async def get(self, id: str, owner: str) -> StoredResponse | None:
        return await self._run("read", self._get, id, owner)

    async def items(self, ids: list[str], owner: str, max_bytes: int) -> dict[str, dict[str, Any]]:
        """Return items of the owner's responses and conversations by id. Unknown ids are left out.

        Reading stops once the items exceed ``max_bytes`` bytes.
        """
        return await self._run("read", self._items, ids, owner, max_bytes)

    async def history_bytes(self, id: str, owner: str) -> int | None:
        """Return the size of the response and its predecessors; None if one is missing."""
        return await self._run("read", self._history_bytes, id, owner)

    async def history(self, id: str, owner: str) -> list[dict[str, Any]]:
        """Return the input and output of the response and its predecessors, oldest first."""
        return await self._run("read", self._history, id, owner)

    async def settle(self, record: StoredResponse) -> bool:
        """Replace a held response by its final state. Return False if it was already settled or
        deleted.
        """
        return await self._run("stored", self._settle, record)

    async def hold(self, ids: list[str], expiry: float) -> set[str]:
        """Extend the hold on responses, and return those that are still held."""
        return await self._run("stored", self._hold, ids, expiry)

    async def delete(self, id: str, owner: str) -> bool:
        """Delete a response, and return True if it existed."""
        return await self._run("deleted", self._delete, id, owner)

    async def sweep(self) -> None:
        """Remove expired and surplus responses. Never raises."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._sweep)

    async def aclose(self) -> None:
        await self._run("closed", self._engine.dispose)
        self._threads.shutdown(wait=False)

    async def _run(self, action: str, work: Callable[..., Result], *arguments: object) -> Result:
        """Run a query on a database thread. Raises StoreFailed."""
        with self._translate_errors(action):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _put(self, record: StoredResponse) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(RESPONSES).where(RESPONSES.c.id == record.id))
            row = _to_row(record)
            connection.execute(insert(RESPONSES).values(row))
            items.add(connection, row, _list_items(record))
        self._note_put(row)

    def _note_put(self, row: dict[str, Any]) -> None:
        self._puts += 1
        self._bytes_put += row["num_bytes"]
        smallest = min(self._retention.bytes, self._retention.owner_bytes)
        if self._puts >= SWEEP_EVERY or self._bytes_put >= min(SWEEP_BYTES, smallest / SWEEP_SHARE):
            self._puts = self._bytes_put = 0
            self._sweep()

    def _settle(self, record: StoredResponse) -> bool:
        condition = (RESPONSES.c.id == record.id) & (RESPONSES.c.owner == record.owner)
        condition &= RESPONSES.c.held_until.is_not(None)
        row = _to_row(record) | {"held_until": None}
        with self._engine.begin() as connection:
            is_updated = (
                connection.execute(update(RESPONSES).where(condition).values(row)).rowcount > 0
            )
            if is_updated:
                items.add(connection, row, _list_items(record))
        if is_updated:
            self._note_put(row)
        return is_updated

    def _hold(self, ids: list[str], expiry: float) -> set[str]:
        condition = RESPONSES.c.id.in_(ids) & RESPONSES.c.held_until.is_not(None)
        with self._engine.begin() as connection:
            connection.execute(update(RESPONSES).where(condition).values(held_until=expiry))
            return set(connection.execute(select(RESPONSES.c.id).where(condition)).scalars())

    def _get(self, id: str, owner: str) -> StoredResponse | None:
        query = select(RESPONSES).where(RESPONSES.c.id == id, *self._readable(owner))
        with self._engine.connect() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else _from_row(row)

    def _items(self, ids: list[str], owner: str, max_bytes: int) -> dict[str, dict[str, Any]]:
        """Read items response by response, because all of them together may be too large."""
        with self._engine.connect() as connection:
            records = conversations.find_items(connection, ids, owner)
            missing_ids = [id for id in ids if id not in records]
            responses = items.find_responses(connection, missing_ids, owner)
        size = sum(len(orjson.dumps(item)) for item in records.values())
        for response, item_ids in responses.items():
            if size > max_bytes or (record := self._get(response, owner)) is None:
                continue
            selection = {
                item["id"]: item for item in _list_items(record) if item.get("id") in item_ids
            }
            size += sum(len(orjson.dumps(item)) for item in selection.values())
            records |= selection
        return records

    def _readable(self, owner: str) -> tuple[Any, Any]:
        oldest = time.time() - self._retention.seconds
        return RESPONSES.c.owner == owner, RESPONSES.c.created >= oldest

    def _history_bytes(self, id: str, owner: str) -> int | None:
        table = RESPONSES.c
        with self._engine.connect() as connection:
            rows = connection.execute(self._chain(id, owner, table.previous, table.size)).all()
        if not rows or rows[0].previous is not None:
            return None
        return sum(int(size) for _, size in rows)

    def _history(self, id: str, owner: str) -> list[dict[str, Any]]:
        table = RESPONSES.c
        with self._engine.connect() as connection:
            rows = connection.execute(self._chain(id, owner, table.input, table.output)).all()
        texts = (text for row in rows for text in (row.input, row.output) if text is not None)
        return [item for text in texts for item in orjson.loads(text)]

    def _chain(self, id: str, owner: str, *columns: Any) -> Select[Any]:
        """Select columns of the response and its predecessors, oldest first, in one statement."""
        table, readable = RESPONSES.c, self._readable(owner)
        start = select(table.id, table.previous, literal(0).label("depth"))
        chain = start.where(table.id == id, *readable).cte("chain", recursive=True)
        predecessors = select(table.id, table.previous, chain.c.depth + 1)
        chain = chain.union_all(
            predecessors.join(chain, table.id == chain.c.previous).where(
                chain.c.depth < LONGEST_HISTORY, *readable
            )
        )
        query = select(*columns).join(chain, chain.c.id == table.id)
        return query.order_by(chain.c.depth.desc())

    def _delete(self, id: str, owner: str) -> bool:
        statement = delete(RESPONSES).where(RESPONSES.c.id == id, RESPONSES.c.owner == owner)
        with self._engine.begin() as connection:
            is_deleted = connection.execute(statement).rowcount > 0
            if is_deleted:
                items.remove(connection, [id])
        return is_deleted

    def _sweep(self) -> None:
        """Remove surplus responses. A failure is only logged: deleting, too, may fail on a full
        disk.
        """
        try:
            self._remove_surplus()
        except SQLAlchemyError as error:
            log.error("cannot remove old responses: %s", self._read_cause(error))

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        """Log the cause, which may name hosts and files, and raise StoreFailed without it."""
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            log.error("responses cannot be %s: %s", action, self._read_cause(error))
            failure = f"Responses cannot be {action} at the moment."
            raise StoreFailed(failure, retry_after_s=5) from error

    def _read_cause(self, error: Exception) -> str:
        """Return the database's own message without the statement and the URL's secrets."""
        return hide_secrets(str(getattr(error, "orig", None) or error), self._url)

    def _remove_surplus(self) -> None:
        oldest = time.time() - self._retention.seconds
        with self._engine.begin() as connection:
            conversations.remove_old(connection, oldest)
            items.remove_old(connection, oldest)
            connection.execute(delete(RESPONSES).where(RESPONSES.c.created < oldest))
            for owner, surplus in _find_surplus(connection, self._retention).items():
                _remove_oldest(connection, owner, *surplus)


def _prepare(engine: Engine) -> None:
    """Create missing tables. Raises StoreError for tables of another version."""
    if engine.dialect.name == "sqlite":
        enable_shrinking(engine)
    for metadata in (METADATA, conversations.METADATA, items.METADATA):
        metadata.create_all(engine)
        check_columns(engine, metadata.tables.values())


def _find_surplus(connection: Connection, retention: Retention) -> dict[str, tuple[int, int]]:
    """Return the surplus of each owner as (responses, bytes)."""
    table = RESPONSES.c
    size = func.coalesce(func.sum(table.num_bytes), 0)
    rows = connection.execute(select(table.owner, func.count(), size).group_by(table.owner)).all()
    counts = _share({owner: int(count) for owner, count, _ in rows}, retention.most)
    sizes = {owner: min(int(size), retention.owner_bytes) for owner, _, size in rows}
    sizes = _share(sizes, retention.bytes)
    surplus = {
        owner: (count - counts[owner], int(size) - sizes[owner]) for owner, count, size in rows
    }
    return {owner: excess for owner, excess in surplus.items() if any(excess)}


def _share(usage: dict[str, int], total: int) -> dict[str, int]:
    """Return the amount that each owner may keep. Owners below their share keep everything."""
    shares, room = {}, total
    for index, (amount, owner) in enumerate(
        sorted((amount, owner) for owner, amount in usage.items())
    ):
        shares[owner] = min(amount, room // (len(usage) - index))
        room -= shares[owner]
    return shares


def _remove_oldest(connection: Connection, owner: str, count: int, num_bytes: int) -> None:
    """Remove the owner's oldest responses: at least ``count``, with at least ``num_bytes``."""
    table = RESPONSES.c
    query = select(table.id, table.num_bytes).where(table.owner == owner).order_by(table.created)
    ids = []
    with connection.execute(query) as rows:
        for id, size in rows:
            if count <= 0 and num_bytes <= 0:
                break
            ids.append(id)
            count, num_bytes = count - 1, num_bytes - size
    items.remove(connection, ids)
    for start in range(0, len(ids), 500):
        connection.execute(delete(RESPONSES).where(RESPONSES.c.id.in_(ids[start : start + 500])))


def _to_row(record: StoredResponse) -> dict[str, Any]:
    response = record.response
    input_json = orjson.dumps(record.input)
    output = orjson.dumps(response["output"]) if "output" in response else None
    if output is not None:
        response = response | {"output": None}
    response_json = orjson.dumps(response)
    return {
        "id": record.id,
        "owner": record.owner,
        "created": record.created,
        "previous": record.previous,
        "response": response_json.decode(),
        "input": input_json.decode(),
        "output": None if output is None else output.decode(),
        "size": len(input_json) + len(output or b""),
        "num_bytes": len(response_json) + len(input_json) + len(output or b""),
        "held_until": record.held_until,
    }


def _from_row(row: Any) -> StoredResponse:
    response = orjson.loads(row["response"])
    if row["output"] is not None:
        response["output"] = orjson.loads(row["output"])
    return StoredResponse(
        id=row["id"],
        owner=row["owner"],
        created=row["created"],
        response=response,
        input=orjson.loads(row["input"]),
        previous=row["previous"],
        held_until=row["held_until"],
    )


def _list_items(record: StoredResponse) -> list[dict[str, Any]]:
    return [*record.input, *(record.response.get("output") or ())]
