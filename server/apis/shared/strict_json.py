"""Strict JSON parsing with limits on size, depth and numbers.

orjson is fast and refuses NaN, bad UTF-8 and lone surrogates, but silently accepts duplicate keys
(which of the two did a proxy check?) and numbers that no double can hold. Where colons outnumber
keys or a number is unusual, the standard library's scanner parses the body again and its hooks
refuse these.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

MAX_DEPTH = 64
MAX_DIGITS = 40
MAX_ITEMS = 200_000
"""Values in one body, all levels together."""
MAX_CONTAINERS = 50_000
"""Objects and arrays among them; each is visited."""
_CONTAINERS = (dict, list)
_STRING = re.compile(rb'"[^"]*"')
"""Where no quote is escaped."""
_UNUSUAL = re.compile(rb"[0-9][eE]|[0-9.]{%d}" % (MAX_DIGITS + 1))
"""A number with an exponent, or a long one."""


class BadJSON(ValueError):
    """``str(error)`` is one sentence for the client."""


def loads(body: bytes) -> Any:
    """Raises BadJSON."""
    skeleton = _skeleton(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadJSON(f"The body is not valid JSON: {error.msg} ({where}).") from None
    keys = _check_size(data)
    if skeleton.count(b":") != keys or _UNUSUAL.search(skeleton):
        _check_numbers_and_keys(body)
    return data


def _skeleton(body: bytes) -> bytes:
    """The body without its strings. Raises BadJSON for too many values before any is made."""
    plain = body
    if b"\\" in body:
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MAX_ITEMS:
        raise _too_many()
    skeleton = _STRING.sub(b"", plain)
    if skeleton.count(b",") + skeleton.count(b"[") + skeleton.count(b"{") > 2 * MAX_ITEMS:
        raise _too_many()
    return skeleton


def _check_numbers_and_keys(body: bytes) -> None:
    """Parse again, for duplicate keys and unusual numbers."""
    try:
        _SECOND.decode(body.decode())
    except RecursionError:
        raise _too_deep() from None


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Refuse duplicate keys; the values are ignored."""
    if len({key for key, _ in pairs}) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise BadJSON(f"The key '{key[:80]}' is given twice in one object.")
        seen.add(key)


def _integer(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise BadJSON(f"A number may have at most {MAX_DIGITS} digits; one has {len(digits)}.")


def _decimal(text: str) -> None:
    if len(text) > 2 * MAX_DIGITS or abs(float(text)) == float("inf"):
        raise BadJSON(f"The number {text[:MAX_DIGITS]} is too large or too long.")


_SECOND = json.JSONDecoder(object_pairs_hook=_once, parse_int=_integer, parse_float=_decimal)


def _check_size(data: Any) -> int:
    """The number of keys. Breadth first, so that depth uses no stack."""
    level, depth, items, containers, keys = [data], 0, 0, 0, 0
    while level:
        items += len(level)
        if items > MAX_ITEMS:
            raise _too_many()
        inner = [value for value in level if isinstance(value, _CONTAINERS)]
        containers += len(inner)
        if containers > MAX_CONTAINERS:
            raise BadJSON(f"The body may hold at most {MAX_CONTAINERS} objects and arrays.")
        keys += sum(len(value) for value in inner if isinstance(value, dict))
        level = [child for value in inner for child in _children(value)]
        depth += bool(level)
        if depth > MAX_DEPTH:
            raise _too_deep()
    return keys


def _too_many() -> BadJSON:
    return BadJSON(f"The body may hold at most {MAX_ITEMS} values.")


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> BadJSON:
    return BadJSON(f"The body may be nested at most {MAX_DEPTH} levels deep.")
