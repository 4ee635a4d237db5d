"""Discovery of worker addresses from a list, a file or DNS, which are read periodically."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from eaglegate.engine.bounded_yaml import InvalidYaml, read_text
from eaglegate.engine.errors import redact


class DiscoveryError(Exception):
    """The source cannot be read now, and the known workers stay.

    The message names source and cause, and holds no credentials.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class StaticSource:
    """The addresses given on the command line."""

    interval_s = 3600.0

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = frozenset(addresses)

    async def read(self) -> frozenset[str]:
        return self._addresses


RESOLVE_S = 10.0


class DnsSource:
    """A DNS name of workers, such as a headless service: each address of the name is one worker.

    ``name`` is HOST:PORT, or an address with a scheme. A name that cannot be resolved changes
    nothing, because workers do not fail with the resolver; health checks find lost workers.
    """

    def __init__(self, name: str, interval_s: float = 5.0) -> None:
        """Parse the name. Raises ValueError."""
        self.interval_s = interval_s
        self._name = name
        scheme, _, host_port = name.rpartition("://")
        parts = urlsplit(f"//{host_port}")
        if not parts.hostname or parts.port is None:
            raise ValueError(f"a DNS name of workers must be HOST:PORT; given {redact(name)!r}")
        self._scheme = scheme or "http"
        self._host, self._port = parts.hostname, parts.port

    async def read(self) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_S):
                entries = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise DiscoveryError(f"{self._name}: no answer for {RESOLVE_S:g} s") from None
        except OSError as error:
            raise DiscoveryError(f"{self._name} cannot be resolved: {error}") from error
        return frozenset(self._build_url(str(address[0])) for *_, address in entries)

    def _build_url(self, address: str) -> str:
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        return f"{self._scheme}://{host}:{self._port}"


class FileSource:
    """A file with an address per line that is read again when it changes: a new worker gets traffic
    in seconds.

    ``canonical`` normalizes an address and raises ValueError for anything else. A file with one bad
    entry changes nothing, so that a typing error drops no worker.
    """

    def __init__(
        self, path: Path, canonical: Callable[[str], str], interval_s: float = 1.0
    ) -> None:
        self.interval_s = interval_s
        self._path = path
        self._canonical = canonical
        self._version: tuple[int, int] | None = None
        self._addresses: frozenset[str] = frozenset()

    async def read(self) -> frozenset[str]:
        return await asyncio.to_thread(self.read_now)

    def read_now(self) -> frozenset[str]:
        """Return the addresses, and read the file if it has changed. Raises DiscoveryError."""
        try:
            stat = self._path.stat()
            version = stat.st_mtime_ns, stat.st_size
            if version != self._version:
                self._addresses = self._parse(read_text(self._path))
                self._version = version
        except (OSError, InvalidYaml) as error:
            raise DiscoveryError(f"{self._path} cannot be read: {error}") from error
        return self._addresses

    def _parse(self, text: str) -> frozenset[str]:
        try:
            return frozenset(map(self._canonical, _split_lines(text)))
        except ValueError as error:
            raise DiscoveryError(f"{self._path}: {error}") from error


WorkerSource = StaticSource | DnsSource | FileSource
"""A source of worker addresses, which are opaque strings here. ``interval_s`` is the pause between
two readings, and ``read`` raises DiscoveryError."""


def _split_lines(text: str) -> list[str]:
    """Return the lines that are not empty, without comments."""
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
