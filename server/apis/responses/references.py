"""References to items: the items themselves, from what is stored for whoever asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from server.access.budget import charge
from server.apis.responses.items import REFERENCE, ItemDict
from server.apis.responses.listing import ItemList
from server.apis.shared.gateway import Gateway
from server.errors import InvalidRequest, NotFound


async def resolve_references(
    given: ItemList, gateway: Gateway, before: Iterable[ItemDict] = (), param: str = "input"
) -> ItemList:
    """``given`` with items where references stood. Raises NotFound and InvalidRequest.

    What is in ``before`` is not said twice.
    """
    references = [item for item in given if item["type"] == REFERENCE]
    if not references:
        return given
    present = {item["id"] for item in before}
    wanted = list(dict.fromkeys(r["id"] for r in references if r["id"] not in present))
    found = await _find_items(wanted, gateway, param)
    for reference in references:
        if reference["id"] not in present and reference["id"] not in found:
            raise _item_not_found(reference, gateway)
    resolved = (found.get(item["id"]) if item["type"] == REFERENCE else item for item in given)
    return [item for item in resolved if item is not None]


async def _find_items(ids: list[str], gateway: Gateway, param: str) -> dict[str, dict[str, Any]]:
    if gateway.store is None or not ids:
        return {}
    found = await gateway.store.items(ids, gateway.owner(), gateway.max_body_bytes)
    num_bytes = sum(len(orjson.dumps(item)) for item in found.values())
    check_history(num_bytes + charge.get().num_bytes, gateway.max_body_bytes, param)
    charge.get().hold(num_bytes)
    return found


def _item_not_found(reference: dict[str, Any], gateway: Gateway) -> NotFound:
    why = (
        "this gateway stores no responses (--responses-store none)"
        if gateway.store is None
        else "it was not stored, is older than what is kept, or belongs to another API key"
    )
    return NotFound(
        f"Item with id '{reference['id']}' not found: {why}. Send the item itself.",
        param=reference["place"],
        code="item_not_found",
    )


def check_history(num_bytes: int, limit: int, param: str) -> None:
    """Raises InvalidRequest for more than could be said in one request."""
    if num_bytes > limit:
        raise InvalidRequest(
            f"What was said before comes to {num_bytes} bytes with this request; a conversation "
            f"may have at most {limit} (--max-body-bytes). Start another one or delete items.",
            param=param,
            code="context_length_exceeded",
        )
