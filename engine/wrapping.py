"""Replacement of functions of other packages by ours around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Call ``wrapper``, whose first argument is the original, in place of ``owner.name``."""
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
