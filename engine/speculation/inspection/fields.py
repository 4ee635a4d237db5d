"""Lenient reads of single values from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def get_int(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number, or None for anything else (true is no number)."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def get_mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def get_strings(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The strings of a list, or nothing."""
    value = config.get(key)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
