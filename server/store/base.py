"""The interface of a store, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


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


class ConversationStore(Protocol):
    """Keeps conversations per owner, and their items in order. All raise StoreFailed."""

    async def put(self, conversation: StoredConversation) -> None:
        """Add, or replace the metadata of the one with the same id.

        Raises InvalidRequest when the owner may have no more.
        """
        ...

    async def get(self, id: str, owner: str) -> StoredConversation | None: ...

    async def delete(self, id: str, owner: str) -> bool:
        """Delete a conversation with its items, and return whether there was one."""
        ...

    async def check(self, id: str, items: list[dict[str, Any]], param: str) -> None:
        """Raises InvalidRequest, naming ``param``, when ``items`` are too much to be added."""
        ...

    async def append(self, id: str, items: list[dict[str, Any]], param: str = "items") -> None:
        """The same, when they are; of a conversation that is gone nothing is kept."""
        ...

    async def append_answer(self, id: str, items: list[dict[str, Any]]) -> None:
        """Append a turn's input and output. It may pass the limit once, up to twice its size."""
        ...

    async def num_bytes(self, id: str) -> int:
        """Return the approximate size of all items as JSON, in bytes."""
        ...

    async def items(self, id: str) -> list[dict[str, Any]]:
        """The oldest first."""
        ...

    async def remove(self, id: str, item: str) -> bool:
        """Whether the conversation had that item."""
        ...


class ResponseStore(Protocol):
    """Keeps responses per owner: one never sees those of another. All raise StoreFailed."""

    async def put(self, stored: StoredResponse) -> None:
        """Add, or replace the one with the same id."""
        ...

    async def get(self, id: str, owner: str) -> StoredResponse | None: ...

    async def items(self, ids: list[str], owner: str, most: int) -> dict[str, dict[str, Any]]:
        """Items by id, of the owner's responses and conversations; unknown ones are not there.

        Reading stops when they have more than ``most`` bytes.
        """
        ...

    async def history_bytes(self, id: str, owner: str) -> int | None:
        """Return the bytes of the response and its predecessors; None when one is missing."""
        ...

    async def history(self, id: str, owner: str) -> list[dict[str, Any]]:
        """Their input and output, the oldest first."""
        ...

    async def settle(self, stored: StoredResponse) -> bool:
        """Replace one that is held, which ends that; False when it was settled or deleted."""
        ...

    async def hold(self, ids: list[str], until: float) -> set[str]:
        """Hold responses longer; returns those that still are, neither settled nor deleted."""
        ...

    async def delete(self, id: str, owner: str) -> bool:
        """Whether there was one."""
        ...

    async def sweep(self) -> None:
        """Remove what is too old or too much, and give its room back. Never raises."""
        ...

    @property
    def conversations(self) -> ConversationStore:
        """Conversations kept in the same database."""
        ...

    async def aclose(self) -> None: ...


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
