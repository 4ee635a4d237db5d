"""Who asks to enter, as admission knows them."""

from __future__ import annotations

from dataclasses import dataclass

from server.access.fair_order import Priority
from server.access.quota import Quota


@dataclass(frozen=True, slots=True)
class Visitor:
    """``name`` is the API key's public name, None without keys."""

    name: str | None = None
    priority: Priority = Priority.NORMAL
    quota: Quota | None = None
    concurrency: int | None = None
    """Requests of this key at a time; None for no bound."""
    deadline: float | None = None
    """By the admission's clock; a request that cannot make it is refused."""
    weight: float = 1.0
    client: str = ""
    """The address of the client, which stands for a key where there are none."""

    @property
    def flow(self) -> str:
        """Whose share the request counts in."""
        return f"client {self.client}" if self.name is None else f"key {self.name}"
