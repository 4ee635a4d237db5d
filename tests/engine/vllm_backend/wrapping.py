"""Replaces functions of vLLM and of the gateway in an engine's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Call ``wrapper``, whose first argument is the original, in place of ``owner.name``."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
