"""Workers behind a name, such as that of a headless service: each of its addresses is one."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from engine.fleet.discovery.base import DiscoveryError
from engine.redaction import redact

RESOLVE_S = 10.0


class DnsSource:
    """``name`` is HOST:PORT, or an address with a scheme.

    A name that cannot be resolved changes nothing: when a resolver is away, workers are not. One
    that stays away is found out by the workers' health.
    """

    def __init__(self, name: str, every_s: float = 5.0) -> None:
        """Raises ValueError."""
        self.every_s = every_s
        self._name = name
        scheme, _, rest = name.rpartition("://")
        parts = urlsplit(f"//{rest}")
        if not parts.hostname or parts.port is None:
            raise ValueError(f"a name of workers is HOST:PORT; given {redact(name)!r}")
        self._scheme = scheme or "http"
        self._host, self._port = parts.hostname, parts.port

    async def read(self) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise DiscoveryError(f"{self._name}: no answer for {RESOLVE_S:g} s") from None
        except OSError as error:
            raise DiscoveryError(f"{self._name} cannot be resolved: {error}") from error
        return frozenset(self._url(str(address[0])) for *_, address in found)

    def _url(self, address: str) -> str:
        host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        return f"{self._scheme}://{host}:{self._port}"
