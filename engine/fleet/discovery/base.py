"""What a source of workers' addresses is."""

from __future__ import annotations

from typing import Protocol

from engine.redaction import redact


class DiscoveryError(Exception):
    """The source cannot be read now; who was known stays. The message names it and the cause, and
    holds no credentials."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class WorkerSource(Protocol):
    """Addresses are opaque here: whoever makes the engines understands them."""

    @property
    def every_s(self) -> float:
        """Pause between two readings."""
        ...

    async def read(self) -> frozenset[str]:
        """All workers there are. Raises DiscoveryError."""
        ...
