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
