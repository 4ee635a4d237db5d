"""OpenAI's list objects."""

from __future__ import annotations

from typing import Any

ItemList = list[dict[str, Any]]


def make_page(items: ItemList, limit: int, order: str, after: str | None) -> dict[str, Any]:
    """One page of ``items``, given the oldest first and shown the newest first unless asked."""
    listed = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in listed]
    if after is not None and after in ids:
        listed = listed[ids.index(after) + 1 :]
    shown = listed[:limit]
    return {
        "object": "list",
        "data": shown,
        "has_more": len(listed) > limit,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
    }
