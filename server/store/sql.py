"""Responses in a database: an SQLite file by default, anything SQLAlchemy reaches by its URL."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from sqlalchemy import (
    Column,
    Float,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from server.errors import StoreFailed
from server.store import conversations, items
from server.store.base import Stored
from server.store.upgrade import name_owners

log = logging.getLogger(__name__)

Result = TypeVar("Result")

SWEEP_EVERY = 100
"""Puts between two sweeps of what is too old or too much."""
CONNECTIONS = 8
"""At a time, to a database that is not a file."""

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
)


class StoreError(ValueError):
    """A store that cannot be opened; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What is older than ``seconds``, and the oldest beyond ``most``, goes."""

    seconds: float = 30 * 86400.0
    most: int = 100_000


class SqlStore:
    """Calls run in threads of their own: one for SQLite, whose connection takes one at a time."""

    def __init__(self, url: str, retention: Retention | None = None) -> None:
        """Raises StoreError."""
        self._retention = retention or Retention()
        self._puts = 0
        try:
            self._engine = _connect(url)
            METADATA.create_all(self._engine)
            conversations.METADATA.create_all(self._engine)
            items.METADATA.create_all(self._engine)
            for index in conversations.ITEMS.indexes:
                index.create(self._engine, checkfirst=True)
            with self._engine.begin() as connection:
                name_owners(connection, RESPONSES)
                name_owners(connection, conversations.CONVERSATIONS)
        except (SQLAlchemyError, ArgumentError, ImportError, OSError) as error:
            raise StoreError(f"responses cannot be stored at {_shown(url)}: {error}") from error
        workers = 1 if self._engine.dialect.name == "sqlite" else CONNECTIONS
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="responses")
        self._sweep()
        self.conversations = conversations.SqlConversations(self._engine, self._run)

    async def put(self, stored: Stored) -> None:
        await self._run("stored", self._put, stored)

    async def get(self, id: str, owner: str) -> Stored | None:
        return await self._run("read", self._get, id, owner)

    async def items(self, ids: list[str], owner: str, most: int) -> dict[str, dict[str, Any]]:
        return await self._run("read", self._items, ids, owner, most)

    async def delete(self, id: str, owner: str) -> bool:
        return await self._run("deleted", self._delete, id, owner)

    async def aclose(self) -> None:
        await self._run("left", self._engine.dispose)
        self._threads.shutdown(wait=False)

    async def _run(self, what: str, work: Callable[..., Result], *given: object) -> Result:
        """Raises StoreFailed."""
        with _explained(what):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def _put(self, stored: Stored) -> None:
        row = {
            "id": stored.id,
            "owner": stored.owner,
            "created": stored.created,
            "previous": stored.previous,
            "response": orjson.dumps(stored.response).decode(),
            "input": orjson.dumps(stored.input).decode(),
        }
        with self._engine.begin() as connection:
            connection.execute(delete(RESPONSES).where(RESPONSES.c.id == stored.id))
            connection.execute(insert(RESPONSES).values(row))
            items.add(connection, row, _items_of(stored))
        self._puts += 1
        if self._puts % SWEEP_EVERY == 0:
            self._sweep()

    def _get(self, id: str, owner: str) -> Stored | None:
        oldest = time.time() - self._retention.seconds
        wanted = select(RESPONSES).where(
            RESPONSES.c.id == id, RESPONSES.c.owner == owner, RESPONSES.c.created >= oldest
        )
        with self._engine.connect() as connection:
            row = connection.execute(wanted).mappings().first()
        return None if row is None else _stored(row)

    def _items(self, ids: list[str], owner: str, most: int) -> dict[str, dict[str, Any]]:
        """One response after another: they may be large, and all of them too much."""
        with self._engine.connect() as connection:
            found = conversations.items_named(connection, ids, owner)
            left = [id for id in ids if id not in found]
            wanted = items.responses_with(connection, left, owner)
        size = sum(len(orjson.dumps(item)) for item in found.values())
        for response, some in wanted.items():
            if size > most or (stored := self._get(response, owner)) is None:
                continue
            named = {item["id"]: item for item in _items_of(stored) if item.get("id") in some}
            size += sum(len(orjson.dumps(item)) for item in named.values())
            found |= named
        return found

    def _delete(self, id: str, owner: str) -> bool:
        gone = delete(RESPONSES).where(RESPONSES.c.id == id, RESPONSES.c.owner == owner)
        with self._engine.begin() as connection:
            found = connection.execute(gone).rowcount > 0
            if found:
                items.remove(connection, [id])
        return found

    def _sweep(self) -> None:
        """Not worth failing for: a full disk has no room for deleting either."""
        try:
            self._remove_surplus()
        except SQLAlchemyError as error:
            log.error("old responses could not be removed: %s", _cause(error))

    def _remove_surplus(self) -> None:
        oldest = time.time() - self._retention.seconds
        with self._engine.begin() as connection:
            conversations.remove_old(connection, oldest)
            items.remove_old(connection, oldest)
            connection.execute(delete(RESPONSES).where(RESPONSES.c.created < oldest))
            count = connection.execute(select(func.count()).select_from(RESPONSES)).scalar() or 0
            if count > self._retention.most:
                first = select(RESPONSES.c.id).order_by(RESPONSES.c.created)
                surplus = first.limit(count - self._retention.most)
                ids = connection.execute(surplus).scalars().all()
                connection.execute(delete(RESPONSES).where(RESPONSES.c.id.in_(ids)))
                items.remove(connection, ids)


def default_url() -> str:
    """A file of this user's."""
    return f"sqlite:///{Path.home()}/.local/state/eaglegate/responses.sqlite"


def sqlite_directory(url: str) -> Path | None:
    """Where the file of an SQLite store is; None for a database that is no file."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return None
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return None
    return Path(str(parsed.database)).parent


def _connect(url: str) -> Engine:
    """Only the owner may read an SQLite file: it holds prompts."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True, hide_parameters=True)
    if parsed.database in (None, "", ":memory:"):
        arguments = {"check_same_thread": False}
        return create_engine(
            parsed, poolclass=StaticPool, connect_args=arguments, hide_parameters=True
        )
    path = Path(str(parsed.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return create_engine(parsed, hide_parameters=True)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """The cause goes to the log: it may name hosts and files."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        log.error("responses cannot be %s: %s", what, _cause(error))
        raise StoreFailed(f"Responses cannot be {what} at the moment.", retry_after_s=5) from error


def _cause(error: Exception) -> str:
    """What the database said, without the statement."""
    return str(getattr(error, "orig", None) or error)


def _shown(url: str) -> str:
    """The URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return "the URL given"


def _stored(row: Any) -> Stored:
    return Stored(
        id=row["id"],
        owner=row["owner"],
        created=row["created"],
        response=orjson.loads(row["response"]),
        input=orjson.loads(row["input"]),
        previous=row["previous"],
    )


def _items_of(stored: Stored) -> list[dict[str, Any]]:
    return [*stored.input, *stored.response.get("output", ())]
