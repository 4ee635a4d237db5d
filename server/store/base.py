"""The stored types and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response with its input."""

    id: str
    owner: str
    """``ApiKey.owner`` of the key that created the response; empty without keys."""
    created: float
    """Unix time in seconds."""
    response: dict[str, Any]
    input: list[dict[str, Any]]
    """The input items of its own request. Earlier items belong to ``previous``."""
    previous: str | None = None
    held_until: float | None = None
    """Unix time until which a gateway claims to be generating the response; None when it is
    complete.
    """


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one conversation, and of all conversations of one owner."""

    items: int = 10_000
    bytes: int = 8 << 20
    """Maximum size of a conversation's items as JSON."""
    conversations: int = 10_000
    owner_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation without its items."""

    id: str
    owner: str
    created: float
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits of stored responses. Responses older than ``seconds`` are removed, then the oldest
    ones beyond a limit.
    """

    seconds: float = 30 * 86400.0
    most: int = 100_000
    """Maximum number of responses of all owners together."""
    bytes: int = 16 << 30
    """Maximum size of all responses as JSON."""
    owner_bytes: int = 4 << 30
    """Maximum size of one owner's responses."""
