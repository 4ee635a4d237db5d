"""Brings a database made by an earlier version up to date, each time it is opened."""

from __future__ import annotations

import re

from sqlalchemy import Table, select, update
from sqlalchemy.engine import Connection

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
