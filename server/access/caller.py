"""Who makes the request at hand: set by the auth middleware, read once per job."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from server.access.budget import KeyQuota
from server.access.fair_order import Priority
from server.access.keys import ApiKey


@dataclass(frozen=True, slots=True)
class Requester:
    """``name`` is the API key's public name, None without keys."""

    name: str | None = None
    priority: Priority = Priority.NORMAL
    quota: KeyQuota | None = None
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


@dataclass(frozen=True, slots=True)
class Caller:
    """``key`` is None where no keys are configured; ``timeout_s`` None without a deadline."""

    key: ApiKey | None = None
    timeout_s: float | None = None
    session: str | None = None
    """What the client calls the session this request belongs to."""
    client: str = ""
    """The client's address, or the network it counts as one of."""

    def to_requester(self, deadline: float | None = None) -> Requester:
        """As admission knows them."""
        if self.key is None:
            return Requester(deadline=deadline, client=self.client)
        key = self.key
        return Requester(
            key.name, key.priority, key.quota, key.concurrency, deadline, key.weight, self.client
        )


caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039
