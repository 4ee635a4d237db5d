"""Caller of a request: its API key, its charge and notices, and its identity in admission."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import Scope

from eaglegate.server.access.budget import RequestBudget, RequestCharge
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.notices import Notices
from eaglegate.server.access.quota import KeyQuota

UNBOUNDED = RequestBudget(held_bytes=1 << 62)
"""Budget of requests that nobody has authenticated."""


@dataclass(frozen=True, slots=True)
class Requester:
    """A caller's identity in admission. ``name`` is the API key's public name, None without
    keys.
    """

    name: str | None = None
    priority: Priority = Priority.NORMAL
    quota: KeyQuota | None = None
    concurrency: int | None = None
    """Maximum number of concurrent answers of the key; None for no limit."""
    deadline: float | None = None
    """Deadline on admission's clock. A request that cannot meet it is refused."""
    weight: float = 1.0
    client: str = ""
    """Address of the client, which takes the place of a key if none is configured."""
    prepaid: float = 0.0
    """Tokens of the quota that the request has paid in advance."""

    @property
    def flow(self) -> str:
        """Name of the flow whose share the request counts in."""
        return f"client {self.client}" if self.name is None else f"key {self.name}"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key. ``name`` identifies it in logs, metrics and rules."""

    name: str
    digest: bytes
    priority: Priority = Priority.NORMAL
    weight: float = 1.0
    """Share of the places, relative to other keys of the same class."""
    models: frozenset[str] | None = None
    """Models that the key may use; None for all."""
    concurrency: int | None = None
    quota: KeyQuota | None = None
    depth: int | None = None
    expires: float | None = None
    """Unix time of expiry."""
    admin: bool = False
    latency_ms: float | None = None
    """Latency objective in milliseconds per output token; 0 for a latency class without a number,
    None for keys in no latency class.
    """
    step_weight: float = 1.0
    """Share of the engine's steps that a batch key gets next to a latency class."""
    named: bool = True
    """True if an operator chose the name; otherwise it is derived from the hash."""

    @property
    def owner(self) -> str:
        """Owner of the key's stored responses, independent of all other keys.

        A named key keeps its responses when its secret changes.
        """
        return f"key:{self.name}" if self.named else f"sha256:{self.digest.hex()}"

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. ``key`` is None if no keys are configured, ``timeout_s`` None
    without a deadline.
    """

    key: ApiKey | None = None
    timeout_s: float | None = None
    session: str | None = None
    """The client's name for the session that the request belongs to."""
    client: str = ""
    """The client's address, or the network that it is counted by."""
    chose_timeout: bool = False
    """True if ``timeout_s`` is the client's own, which is shorter than the gateway's."""
    workload: str | None = None
    """The client's name for the kind of the request."""
    charge: RequestCharge = field(default_factory=UNBOUNDED.open)
    notices: Notices = field(default_factory=Notices)

    @property
    def name(self) -> str | None:
        """The public name of the API key, never the key itself."""
        return None if self.key is None else self.key.name

    @property
    def owner(self) -> str:
        """Owner of the stored objects that the caller may access."""
        return "" if self.key is None else self.key.owner

    def may_use(self, model: str) -> bool:
        return self.key is None or self.key.may_use(model)

    def to_requester(self, deadline: float | None = None) -> Requester:
        """Return the identity under which admission counts this caller."""
        key, prepaid = self.key, self.charge.prepaid
        if key is None:
            return Requester(deadline=deadline, client=self.client, prepaid=prepaid)
        return Requester(
            key.name,
            key.priority,
            key.quota,
            key.concurrency,
            deadline,
            key.weight,
            self.client,
            prepaid,
        )


def find_caller(scope: Scope) -> Caller:
    """Return the caller that the authentication middleware has added to the request."""
    caller: Caller = scope["state"]["caller"]
    return caller
