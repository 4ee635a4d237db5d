"""What a source of workers' addresses is."""

from __future__ import annotations

from typing import Protocol


class DiscoveryError(Exception):
    """The source cannot be read now; who was known stays. The message names it and the cause."""


class Source(Protocol):
    """Addresses are opaque here: whoever makes the engines understands them."""

    @property
    def every_s(self) -> float:
        """Pause between two readings."""
        ...

    async def read(self) -> frozenset[str]:
        """All workers there are. Raises DiscoveryError."""
        ...
