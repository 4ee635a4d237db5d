"""JSON arguments compared by what they say: key order and number spelling count, blanks do not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    spelled: str


def _ordered(text: str) -> Any:
    """Objects as pairs, in order; numbers as they are spelled."""
    return json.loads(
        text,
        object_pairs_hook=tuple,
        parse_int=Number,
        parse_float=Number,
        parse_constant=Number,
    )


def same_json(one: str, other: str) -> bool:
    try:
        return bool(_ordered(one) == _ordered(other))
    except ValueError:
        return one == other


def complete(prefix: str) -> str:
    """A beginning of a JSON object, closed where it stands.

    What is not there yet is left out: a key without a value, a comma, half an escape.
    """
    closers, in_string, safe = [], False, "{}"
    for place, char in enumerate(prefix):
        if in_string:
            in_string = not (char == '"' and not _escaped(prefix, place))
        elif char == '"':
            in_string = True
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
        elif char in "}]":
            closers.pop()
        safe = _closed(prefix[: place + 1], in_string, closers) or safe
    return safe


def _escaped(text: str, place: int) -> bool:
    before = text[:place]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _closed(prefix: str, in_string: bool, closers: list[str]) -> str | None:
    """``prefix`` with its strings, lists and objects closed, if that is JSON."""
    whole = prefix + ('"' if in_string else "") + "".join(reversed(closers))
    try:
        json.loads(whole)
    except ValueError:
        return None
    return whole
