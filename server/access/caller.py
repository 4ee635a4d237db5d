"""Who makes the request at hand and how long they will wait: set at the door, read once per job."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from server.access.admission import Visitor
from server.access.keys import Key


@dataclass(frozen=True, slots=True)
class Caller:
    """``key`` is None where no keys are configured; ``timeout_s`` None without a deadline."""

    key: Key | None = None
    timeout_s: float | None = None
    session: str | None = None
    """What the client calls the session this request belongs to."""
    client: str = ""
    """The client's address, or the network it counts as one of."""

    def visitor(self, deadline: float | None = None) -> Visitor:
        """As admission knows them."""
        if self.key is None:
            return Visitor(deadline=deadline, client=self.client)
        key = self.key
        return Visitor(
            key.name, key.priority, key.quota, key.concurrency, deadline, key.weight, self.client
        )


caller: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039
