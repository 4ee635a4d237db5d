"""The database of the store: opened, checked and shrunk."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

from sqlalchemy import Table, create_engine, event, inspect
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

log = logging.getLogger(__name__)

FREE_PAGES = 64
"""Pages that may stay free: the next responses need them."""
PAGES_AT_A_TIME = 8192
MIN_SECRET = 4
"""Characters of a value in a URL's query that is kept out of messages."""


class StoreError(ValueError):
    """A store that cannot be opened; the message says which and why."""


def default_url() -> str:
    """A file of this user's."""
    return f"sqlite:///{Path.home()}/.local/state/eaglegate/responses.sqlite"


def sqlite_directory(url: str) -> Path | None:
    """Return the folder of an SQLite store's file; None for a database that is no file."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    path = _sqlite_path(parsed)
    return None if path is None else path.parent


def connect(url: str) -> Engine:
    """Open a database. Only the owner may read an SQLite file, since it holds prompts."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True, hide_parameters=True)
    if parsed.database in (None, "", ":memory:"):
        arguments = {"check_same_thread": False}
        return create_engine(
            parsed, poolclass=StaticPool, connect_args=arguments, hide_parameters=True
        )
    path = _sqlite_path(parsed)
    if path is not None and parsed.query.get("mode") != "ro":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    return create_engine(parsed, hide_parameters=True)


def _sqlite_path(parsed: URL) -> Path | None:
    """The file of an SQLite URL; None for a database in memory and for one that is not SQLite's.

    With ``?uri=true`` the name is SQLite's own URI: ``file:/var/lib/r.sqlite``.
    """
    name = str(parsed.database or "")
    if name.startswith("file:") and parsed.query.get("uri"):
        name = "" if parsed.query.get("mode") == "memory" else unquote(urlsplit(name).path)
    if parsed.get_backend_name() != "sqlite" or name in ("", ":memory:"):
        return None
    return Path(name)


def hide_password(url: str) -> str:
    """The URL without its password and its query, which may hold another."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "the URL given"
    shown = parsed.set(query={}).render_as_string(hide_password=True)
    return f"{shown}?..." if parsed.query else shown


def hide_secrets(text: str, url: str) -> str:
    """``text``, which a driver wrote, without what is secret in the URL it was given."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "it is not a database URL"
    found = {str(parsed.password or ""), *_list_query_values(parsed)} - {""}
    for value in sorted(found, key=len, reverse=True):
        for written in (value, quote(value, safe=""), quote_plus(value)):
            text = text.replace(written, "***")
    return text


def _list_query_values(url: URL) -> Iterator[str]:
    """Yield the values of a URL's query, without values too short to be secret.

    A short value, such as a number, may be part of any word.
    """
    for given in url.query.values():
        values = (given,) if isinstance(given, str) else given
        yield from (value for value in values if len(value) >= MIN_SECRET)


def check_columns(engine: Engine, tables: Iterable[Table]) -> None:
    """Raises StoreError for tables that an earlier version of the gateway made."""
    for table in tables:
        known = {column["name"] for column in inspect(engine).get_columns(table.name)}
        missing = [column.name for column in table.columns if column.name not in known]
        if missing:
            raise StoreError(
                f"{table.name} is of an earlier version and has no {' and no '.join(missing)}; "
                "choose another database, or remove its tables named eaglegate_*"
            )


def enable_shrinking(engine: Engine) -> None:
    """Make a new file one that can shrink."""

    @event.listens_for(engine, "connect")
    def set_auto_vacuum(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def shrink(engine: Engine) -> None:
    """Give free pages back, not too many at a time. Never raises: they serve the next rows."""
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            if (free := _pragma(driver, "freelist_count")) > FREE_PAGES:
                pages = min(free - FREE_PAGES // 2, PAGES_AT_A_TIME)
                # One step frees one page, and ``execute`` takes only one.
                driver.executescript(f"PRAGMA incremental_vacuum({pages})")
    except (SQLAlchemyError, sqlite3.Error) as error:
        log.warning("the response store could not be shrunk: %s", error)


def _pragma(driver: Any, name: str) -> int:
    return int(driver.execute(f"PRAGMA {name}").fetchone()[0])
