"""Brings a database made by an earlier version up to date, each time it is opened."""

from __future__ import annotations

import re

from sqlalchemy import Table, inspect, select, update
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError, ProgrammingError

POSITIONAL = re.compile(r"key-[0-9]+|admin")
"""Owners that stood for the n-th key of a command line, whichever key that was at the time."""


def name_owners(connection: Connection, table: Table) -> None:
    """Turn names of keys into owners. A positional name is left: no key owns it any more.

    No key's name has a colon and every owner has one, so doing it again changes nothing.
    """
    owner = table.c.owner
    for old in connection.execute(select(owner).distinct()).scalars().all():
        if old and ":" not in old and not POSITIONAL.fullmatch(old):
            connection.execute(update(table).where(owner == old).values(owner=f"key:{old}"))


def add_columns(engine: Engine, table: Table) -> None:
    """Add what later versions have more; empty in the rows there are."""
    for column in table.columns:
        if column.name in _columns(engine, table):
            continue
        kind = column.type.compile(engine.dialect)
        try:
            with engine.begin() as connection:
                connection.exec_driver_sql(
                    f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"
                )
        except (OperationalError, ProgrammingError):  # another gateway was faster
            if column.name not in _columns(engine, table):
                raise
    for index in table.indexes:
        index.create(engine, checkfirst=True)


def _columns(engine: Engine, table: Table) -> set[str]:
    return {column["name"] for column in inspect(engine).get_columns(table.name)}
