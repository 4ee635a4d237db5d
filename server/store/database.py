"""Opening, checking and shrinking the store's database."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from sqlalchemy import Table, create_engine, event, inspect
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

log = logging.getLogger(__name__)

MIN_SECRET = 4
"""Minimum length of a URL query value that is hidden in messages."""


class StoreError(ValueError):
    """A store cannot be opened. The message names the store and the reason."""


def default_url() -> str:
    """Return the URL of an SQLite file in the user's home folder."""
    return f"sqlite:///{Path.home()}/.local/state/eaglegate/responses.sqlite"


def sqlite_directory(url: str) -> Path | None:
    """Return the folder of an SQLite store's file; None if the database is not a file."""
    try:
        location = make_url(url)
    except (ArgumentError, ValueError):
        return None
    path = _sqlite_path(location)
    return None if path is None else path.parent


def connect(url: str) -> Engine:
    """Open a database. An SQLite file is readable only by its owner, since it contains prompts."""
    location = make_url(url)
    if location.get_backend_name() != "sqlite":
        return create_engine(location, pool_pre_ping=True, hide_parameters=True)
    if location.database in (None, "", ":memory:"):
        arguments = {"check_same_thread": False}
        return create_engine(
            location, poolclass=StaticPool, connect_args=arguments, hide_parameters=True
        )
    path = _sqlite_path(location)
    if path is not None and location.query.get("mode") != "ro":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    return create_engine(location, hide_parameters=True)


def _sqlite_path(location: URL) -> Path | None:
    """Return the file of an SQLite URL; None for in-memory and other databases.

    With ``?uri=true`` the name is an SQLite URI: ``file:/var/lib/r.sqlite``.
    """
    name = str(location.database or "")
    if name.startswith("file:") and location.query.get("uri"):
        name = "" if location.query.get("mode") == "memory" else unquote(urlsplit(name).path)
    if location.get_backend_name() != "sqlite" or name in ("", ":memory:"):
        return None
    return Path(name)


def hide_password(url: str) -> str:
    """Return the URL without its password and its query, which may contain another password."""
    try:
        location = make_url(url)
    except (ArgumentError, ValueError):
        return "the URL given"
    text = location.set(query={}).render_as_string(hide_password=True)
    return f"{text}?..." if location.query else text


def hide_secrets(text: str, url: str) -> str:
    """Return a driver's message without the secrets of the URL that the driver received."""
    try:
        location = make_url(url)
    except (ArgumentError, ValueError):
        return "it is not a database URL"
    secrets = {str(location.password or ""), *_list_query_values(location)} - {""}
    for value in sorted(secrets, key=len, reverse=True):
        for spelling in (value, quote(value, safe=""), quote_plus(value)):
            text = text.replace(spelling, "***")
    return text


def _list_query_values(url: URL) -> Iterator[str]:
    """Yield the values of a URL's query that are long enough to be secrets.

    A short value, such as a number, could be part of any word.
    """
    for entry in url.query.values():
        values = (entry,) if isinstance(entry, str) else entry
        yield from (value for value in values if len(value) >= MIN_SECRET)


def check_columns(engine: Engine, tables: Iterable[Table]) -> None:
    """Raise StoreError if tables were created by an earlier, incompatible version of the
    gateway.
    """
    for table in tables:
        names = {column["name"] for column in inspect(engine).get_columns(table.name)}
        missing_columns = [column.name for column in table.columns if column.name not in names]
        if missing_columns:
            raise StoreError(
                f"{table.name} is from an earlier version and has no "
                f"{' and no '.join(missing_columns)}; choose another "
                "database, or remove its tables named eaglegate_*"
            )


def enable_shrinking(engine: Engine) -> None:
    """Return pages of deleted rows to the file system. Takes effect in new SQLite files."""

    @event.listens_for(engine, "connect")
    def set_auto_vacuum(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA auto_vacuum = FULL")
