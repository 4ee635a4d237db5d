"""Fields of a body that no model knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from server.apis.shared.models import RequestModel


def unknown_fields(model: BaseModel, given: Any, path: str = "") -> Iterator[str]:
    """Their paths without indices, each as often as it is there; ``given`` is what was read.

    Open models are not looked into: what they hold is the chat template's to read.
    """
    if not isinstance(model, RequestModel) or not isinstance(given, dict):
        return
    names = {item.alias or name: name for name, item in type(model).model_fields.items()}
    for key, value in given.items():
        if key in names:
            yield from _within(getattr(model, names[key]), value, path + key)
        elif key not in model.refused:
            yield path + key


def _within(value: Any, given: Any, path: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from unknown_fields(value, given, path + ".")
    elif isinstance(value, list) and value and isinstance(value[0], RequestModel):
        for item, one in zip(value, given, strict=False):
            yield from unknown_fields(item, one, path + "[].")
