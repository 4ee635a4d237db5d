"""An SQLite database that shrinks: pages that deleting frees go back to the file system."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

INCREMENTAL = 2
LARGEST_REWRITE = 1 << 30
"""Bytes up to which a file made without incremental vacuum is rewritten when it is opened."""
FREE_PAGES = 64
"""Pages that may stay free: the next responses need them."""
PAGES_AT_A_TIME = 8192


def prepare(engine: Engine) -> None:
    """Make a new file one that can shrink."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def convert(engine: Engine) -> None:
    """The same for a file that an earlier version made: it is rewritten once."""
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            if _pragma(driver, "auto_vacuum") == INCREMENTAL:
                return
            size = _pragma(driver, "page_count") * _pragma(driver, "page_size")
            if size > LARGEST_REWRITE:
                log.warning("the response store has %d bytes and does not shrink: VACUUM it", size)
                return
            driver.execute("PRAGMA auto_vacuum = INCREMENTAL")
            driver.execute("VACUUM")
    except (SQLAlchemyError, sqlite3.Error) as error:
        log.warning("the response store could not be rewritten: %s", error)


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
