"""Numbers and switches that came as text, taken where nothing is lost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
SWITCHES: Mapping[str | int, bool] = {"true": True, "false": False, 1: True, 0: False}


def take(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with such values in the types that the fields of ``model`` have."""
    kinds = _kinds(model)
    return {name: _taken(value, kinds.get(name)) for name, value in data.items()}


@cache
def _kinds(model: type[BaseModel]) -> dict[str, type]:
    """The fields that hold one number or one switch and nothing else."""
    found = {name: _leaves(item.annotation) for name, item in model.model_fields.items()}
    return {
        name: float if float in leaves else next(iter(leaves))
        for name, leaves in found.items()
        if leaves and (leaves <= {int, float} or leaves == {bool})
    }


def _leaves(annotation: Any) -> set[type]:
    """The plain types a value may have, None apart."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _leaves(arguments[0])
    if origin is Literal:
        return {type(value) for value in arguments}
    if origin is None or not arguments or isinstance(origin, type):
        plain = origin or annotation
        if not _is_union(annotation):
            return set() if plain is type(None) else {plain}
    return set().union(*map(_leaves, arguments))


def _is_union(annotation: Any) -> bool:
    return type(annotation).__name__ in ("UnionType", "_UnionGenericAlias")


def _taken(value: Any, kind: type | None) -> Any:
    if kind is bool:
        return SWITCHES.get(value, value) if isinstance(value, str | int) else value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is int and isinstance(value, str) and WHOLE.fullmatch(value):
        return int(value)
    if kind is float and isinstance(value, str):
        return _number(value)
    return value


def _number(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text
