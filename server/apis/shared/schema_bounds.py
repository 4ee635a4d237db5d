"""How large a JSON schema may be: bounded where it comes in, with the place named.

Everything that is done with a schema later (checking it, showing it to the template, making a
grammar of it) takes time at least in proportion to these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from server.errors import InvalidRequest

MAX_BYTES = 256 << 10
"""Of one schema as JSON; the engine's grammar compiler is given no more."""
MAX_PROPERTIES = 5000
"""In all of one schema; OpenAI's limit."""
MAX_BRANCHES = 1000
"""Of one anyOf, oneOf or allOf."""
MAX_DEPTH = 32
BRANCHES = ("anyOf", "oneOf", "allOf", "prefixItems")
SHOWN = 80


def check_bounds(schema: Any, param: str) -> None:
    """Raises InvalidRequest, naming where ``schema`` passes which bound."""
    num_bytes = len(orjson.dumps(schema))
    if num_bytes > MAX_BYTES:
        raise _too_large(param, "$", f"{num_bytes} bytes of JSON", MAX_BYTES)
    num_properties = 0
    for where, part, depth in _parts(schema):
        properties = part.get("properties")
        num_properties += len(properties) if isinstance(properties, dict) else 0
        if num_properties > MAX_PROPERTIES:
            raise _too_large(param, where, f"{num_properties} properties in all", MAX_PROPERTIES)
        for name in BRANCHES:
            if isinstance(part.get(name), list) and len(part[name]) > MAX_BRANCHES:
                told = f"{len(part[name])} branches of '{name}'"
                raise _too_large(param, where, told, MAX_BRANCHES)
        if depth > MAX_DEPTH:
            raise _too_large(param, where, f"{depth} levels", MAX_DEPTH)


def _parts(schema: Any) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Every object in it, with its path and how many schemas are around it."""
    waiting: list[tuple[str, Any, int]] = [("$", schema, 0)]
    while waiting:
        where, part, depth = waiting.pop()
        if isinstance(part, dict):
            yield where, part, depth
            deeper = depth + ("type" in part or "properties" in part or "items" in part)
            waiting += [(_under(where, name), inner, deeper) for name, inner in part.items()]
        elif isinstance(part, list):
            waiting += [(where, inner, depth) for inner in part if isinstance(inner, dict | list)]


def _under(where: str, name: str) -> str:
    """A path that stays short: it is for people."""
    return where if len(where) > SHOWN else f"{where}.{name[:SHOWN]}"


def _too_large(param: str, where: str, given: str, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"The schema in '{param}' is too large: it has {given} at {where}; at most {most} are "
        "taken. Split it, or leave parts of it out.",
        param=param,
        code="invalid_schema",
    )
