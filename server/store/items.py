"""Index of stored items: finds the response that contains an item by the item's id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Float, MetaData, String, Table, delete, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

MAX_ID = 64
AT_A_TIME = 500
"""Number of values in one SQL statement."""

METADATA = MetaData()
INDEX = Table(
    "eaglegate_response_items",
    METADATA,
    Column("owner", String(256), primary_key=True),
    Column("id", String(MAX_ID), primary_key=True),
    Column("response", String(64), nullable=False, index=True),
    Column("created", Float, nullable=False, index=True),
)


def add(
    connection: Connection,
    response: Mapping[str, Any],
    items: Iterable[Mapping[str, Any]],
) -> None:
    """Index the items of ``response``, a row with its id, owner and creation time.

    An item belongs to the first response that contains it as input or output.
    """
    owner = response["owner"]
    ids = list(dict.fromkeys(str(item["id"])[:MAX_ID] for item in items if item.get("id")))
    row = {"owner": owner, "response": response["id"], "created": response["created"]}
    for batch in _batch(ids):
        condition = (INDEX.c.owner == owner) & INDEX.c.id.in_(batch)
        indexed_ids = set(connection.execute(select(INDEX.c.id).where(condition)).scalars())
        if rows := [row | {"id": id} for id in batch if id not in indexed_ids]:
            _insert(connection, rows)


def _insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Insert rows into the index. Rows that another gateway has just inserted are kept."""
    try:
        with connection.begin_nested():
            connection.execute(insert(INDEX), rows)
    except IntegrityError:
        if len(rows) > 1:
            for row in rows:
                _insert(connection, [row])


def find_responses(connection: Connection, ids: Sequence[str], owner: str) -> dict[str, list[str]]:
    """Return the responses that contain any of ``ids``, each with those ids."""
    responses: dict[str, list[str]] = {}
    for batch in _batch(ids):
        query = select(INDEX.c.response, INDEX.c.id).where(
            INDEX.c.owner == owner, INDEX.c.id.in_(batch)
        )
        for response, id in connection.execute(query):
            responses.setdefault(response, []).append(id)
    return responses


def remove(connection: Connection, responses: Sequence[str]) -> None:
    for batch in _batch(responses):
        connection.execute(delete(INDEX).where(INDEX.c.response.in_(batch)))


def remove_old(connection: Connection, oldest: float) -> None:
    connection.execute(delete(INDEX).where(INDEX.c.created < oldest))


def _batch(values: Sequence[str]) -> Iterable[Sequence[str]]:
    return (values[start : start + AT_A_TIME] for start in range(0, len(values), AT_A_TIME))
