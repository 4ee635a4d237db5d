"""What a store keeps, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response with the input that led to it."""

    id: str
    owner: str
    """``Key.owner`` of the API key that made it; empty without keys."""
    created: float
    """Unix time in seconds."""
    response: dict[str, Any]
    input: list[dict[str, Any]]
    """The items of its own request; those before it hang on ``previous``."""
    previous: str | None = None
    held_until: float | None = None
    """Unix time until which a gateway says that it is making the response; None when it is done."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one conversation, and of all conversations of one owner."""

    items: int = 10_000
    bytes: int = 8 << 20
    """Bytes of a conversation's items, as JSON."""
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
    """Limits of stored responses. Older ones than ``seconds`` go, and the oldest beyond a limit."""

    seconds: float = 30 * 86400.0
    most: int = 100_000
    """Responses of all owners."""
    bytes: int = 16 << 30
    """Their bytes, as JSON."""
    owner_bytes: int = 4 << 30
    """Bytes of one owner's responses."""
