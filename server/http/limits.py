"""How many connections there may be, and how much a client may say before its request begins."""

from __future__ import annotations

import ipaddress
import resource
from collections.abc import Sequence
from dataclasses import dataclass

MOST_FILES = 1 << 20
"""Some hosts allow a thousand million, and programs that walk all of them hang."""
MOST_CONNECTIONS = 1 << 14
RESERVED_FILES = 192
"""Kept for the engine's sockets and its restarts, stores, logs and probes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the listening side grants."""

    connections: int = MOST_CONNECTIONS
    per_client: int = MOST_CONNECTIONS // 2
    """Connections of one address, or of one /64 network of IPv6."""
    files: int = MOST_FILES
    """A connection whose file number would be this or more is one too many."""
    head_bytes: int = 64 << 10
    """Of a request line and its headers together; of trailers, too."""
    headers: int = 256
    head_s: float = 20.0
    """Seconds for a TLS handshake, and for a whole request head."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks whose forwarded headers are believed; ``per_client`` is not theirs."""

    @classmethod
    def of(
        cls,
        files: int,
        outgoing: int = 0,
        connections: int | None = None,
        per_client: int | None = None,
        proxies: Sequence[str] = (),
    ) -> Limits:
        """Those for a process that may have ``files`` open and makes ``outgoing`` connections."""
        room = files - min(files // 2, RESERVED_FILES + outgoing)
        total = min(connections or MOST_CONNECTIONS, room)
        return cls(
            total, min(per_client or max(1, total // 2), total), room, proxies=_each(proxies)
        )


LIMITS = Limits()


def network_of(address: str) -> str:
    """Whose connections are counted together: an IPv6 client has a whole /64 to come from."""
    try:
        if ipaddress.ip_address(address).version == 4:
            return address
        network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    except ValueError:
        return address
    return str(network)


def raise_file_limit() -> int:
    """Allow this process, and what it starts, as many open files as it may have; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft > most:
        return most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _each(proxies: Sequence[str]) -> tuple[str, ...]:
    """One by one, or as uvicorn takes them in one argument: ``10.0.0.0/8,127.0.0.1``."""
    return tuple(item.strip() for given in proxies for item in given.split(","))
