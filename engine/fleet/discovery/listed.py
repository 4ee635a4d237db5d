"""Workers named once and for all."""

from __future__ import annotations

from collections.abc import Iterable


class StaticSource:
    """The addresses of a command line."""

    every_s = 3600.0

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = frozenset(addresses)

    async def read(self) -> frozenset[str]:
        return self._addresses
