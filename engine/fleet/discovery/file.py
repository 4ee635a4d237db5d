"""Workers written in a file, which may change: one more line takes traffic in seconds.

# lines                     # YAML, or JSON
http://10.0.0.5:8000        workers:
http://10.0.0.6:8000          - http://10.0.0.5:8000
                              - url: http://10.0.0.6:8000
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from engine.fleet.discovery.base import DiscoveryError

STRUCTURED = ("[", "{", "-", "workers:")
"""How YAML and JSON begin; no address does."""


class FileSource:
    """``canonical`` gives the one way to write an address, and raises ValueError for what is none.

    One file with one bad entry changes nothing, so that a slip of the pen drops no worker.
    """

    def __init__(self, path: Path, canonical: Callable[[str], str], every_s: float = 1.0) -> None:
        self.every_s = every_s
        self._path = path
        self._canonical = canonical
        self._seen: tuple[int, int] | None = None
        self._addresses: frozenset[str] = frozenset()

    async def read(self) -> frozenset[str]:
        return await asyncio.to_thread(self.read_now)

    def read_now(self) -> frozenset[str]:
        """Raises DiscoveryError."""
        try:
            stat = self._path.stat()
            seen = stat.st_mtime_ns, stat.st_size
            if seen != self._seen:
                self._addresses = self._parsed(self._path.read_text(encoding="utf-8"))
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise DiscoveryError(f"{self._path} cannot be read: {error}") from error
        return self._addresses

    def _parsed(self, text: str) -> frozenset[str]:
        entries = self._entries(text)
        try:
            return frozenset(map(self._canonical, entries))
        except ValueError as error:
            raise DiscoveryError(f"{self._path}: {error}") from error

    def _entries(self, text: str) -> list[str]:
        lines = _lines(text)
        if not lines or not lines[0].startswith(STRUCTURED):
            return lines
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise DiscoveryError(f"{self._path} is no YAML: {error}") from error
        if isinstance(content, dict):
            content = content.get("workers")
        if not isinstance(content, list):
            raise DiscoveryError(f"{self._path} must hold an address a line, or 'workers': a list")
        return [self._url(item) for item in content]

    def _url(self, item: Any) -> str:
        url = item.get("url") if isinstance(item, dict) else item
        if not isinstance(url, str):
            raise DiscoveryError(
                f"{self._path}: a worker is an address or has a 'url'; given {item!r}"
            )
        return url.strip()


def _lines(text: str) -> list[str]:
    """Those with something in them, without comments."""
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
