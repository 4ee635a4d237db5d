"""Limits on connections, and accepting within these limits.

asyncio's own servers accept every connection and complete its TLS handshake before it can be
counted. Here a connection is counted when it is accepted. If there is no room, the connection that
has been idle for the longest is closed; if all are busy, the new one is refused. Idle connections
can therefore neither keep others out nor use up the file descriptors that the engine needs.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import orjson
from uvicorn.middleware.proxy_headers import _TrustedHosts
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from eaglegate.server.errors import GatewayError, Unavailable, openai_body

MOST_FILES = 1 << 20
"""Maximum number of open files. Some hosts allow 10^9, and programs that iterate over all of them
hang.
"""
MOST_CONNECTIONS = 1 << 14
RESERVED_FILES = 192
"""File descriptors reserved for the engine's sockets and its restarts, stores, logs and probes."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on incoming connections."""

    connections: int = MOST_CONNECTIONS
    per_client: int = MOST_CONNECTIONS // 2
    """Maximum connections per IPv4 address or IPv6 /64 network."""
    files: int = MOST_FILES
    """Connections whose file descriptor is at least this number are refused."""
    head_bytes: int = 64 << 10
    """Maximum bytes of a request line and its headers, and of trailers."""
    headers: int = 256
    head_s: float = 20.0
    """Seconds allowed for a TLS handshake, and for a complete request head."""
    proxies: str = ""
    """Addresses and networks whose forwarded headers are trusted, in uvicorn's format.
    ``per_client`` does not apply to them.
    """

    @classmethod
    def of(
        cls,
        files: int,
        outgoing: int = 0,
        connections: int | None = None,
        per_client: int | None = None,
        proxies: Sequence[str] = (),
    ) -> ConnectionLimits:
        """Make the limits of a process that may open ``files`` and makes ``outgoing``
        connections.
        """
        room = files - min(files // 2, RESERVED_FILES + outgoing)
        total = min(connections or MOST_CONNECTIONS, room)
        return cls(
            total,
            min(per_client or max(1, total // 2), total),
            room,
            proxies=",".join(proxies),
        )


LIMITS = ConnectionLimits()


@lru_cache(maxsize=4096)
def group_address(address: str) -> str:
    """Return the group that an address is counted in: itself, or its /64 network for IPv6."""
    try:
        if ipaddress.ip_address(address).version == 4:
            return address
        network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    except ValueError:
        return address
    return str(network)


def raise_file_limit() -> int:
    """Raise this process's soft limit on open files as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft > limit:
        return limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


log = logging.getLogger(__name__)

BATCH = 16
"""Connections accepted before the event loop runs other work."""
PAUSE_S = 1.0
"""Seconds until the next attempt when the kernel has no free file descriptors."""
Close = Callable[[], None]
MakeProtocol = Callable[["ConnectionSlot"], asyncio.Protocol]


class ConnectionSlot:
    """A connection's slot, from its acceptance to its end."""

    def __init__(self, gate: ConnectionLimiter, client: str) -> None:
        self.limits = gate.limits
        self.client = client
        self.close: Close = lambda: None
        self._gate = gate
        self._is_counted = True

    def mark_idle(self, close: Close) -> None:
        """Mark the connection as waiting for a request. ``close`` may then be called to make
        room.
        """
        self.close = close
        self._gate.idle[self] = None

    def mark_busy(self) -> None:
        self._gate.idle.pop(self, None)

    def release(self) -> None:
        """Free the slot. A second call has no effect."""
        if self._is_counted:
            self._is_counted = False
            self._gate._release(self)


class ConnectionLimiter:
    """Accepts connections within limits. ``on_refused`` is called for every refused connection."""

    def __init__(
        self, limits: ConnectionLimits, on_refused: Callable[[], None] = lambda: None
    ) -> None:
        self.limits = limits
        self.total = 0
        self.idle: dict[ConnectionSlot, None] = {}
        """Idle connections, the longest idle first."""
        self._on_refused = on_refused
        self._clients: Counter[str] = Counter()
        self._proxies = _TrustedHosts(limits.proxies)
        self._listeners: list[socket.socket] = []
        self._joining: set[asyncio.Task[None]] = set()

    def open(
        self, listener: socket.socket, make: MakeProtocol, context: ssl.SSLContext | None
    ) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self._resume(listener, partial(self._accept_some, listener, make, context))

    def close(self) -> None:
        """Stop accepting connections."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
        self._listeners.clear()

    def _resume(self, listener: socket.socket, accept: Close) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, accept)

    def _accept_some(
        self, listener: socket.socket, make: MakeProtocol, context: ssl.SSLContext | None
    ) -> None:
        try:
            for _ in range(BATCH):
                self._accept(listener, make, context)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(listener, make, context, error)

    def _accept(
        self, listener: socket.socket, make: MakeProtocol, context: ssl.SSLContext | None
    ) -> None:
        connection, address = listener.accept()
        client = group_address(address[0])
        if not self._has_room(connection.fileno(), client, address[0]):
            self._on_refused()
            _reject(connection, context is None)
            return
        entry = ConnectionSlot(self, client)
        self.total += 1
        self._clients[client] += 1
        task = asyncio.create_task(self._connect(connection, partial(make, entry), entry, context))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _connect(
        self,
        connection: socket.socket,
        make: Callable[[], asyncio.Protocol],
        entry: ConnectionSlot,
        context: ssl.SSLContext | None,
    ) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make,
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self.limits.head_s,
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            entry.release()
        except BaseException:
            entry.release()
            raise

    def _has_room(self, file: int, client: str, address: str) -> bool:
        """Return True if one more connection fits, closing idle ones where needed."""
        limits = self.limits
        if self._clients[client] >= limits.per_client and address not in self._proxies:
            return self._make_room(client)
        if self.total >= limits.connections or file >= limits.files:
            return self._make_room(None)
        return True

    def _make_room(self, client: str | None) -> bool:
        """Close the longest idle connection, of ``client`` if given."""
        for entry in self.idle:
            if client is None or entry.client == client:
                del self.idle[entry]
                entry.close()
                entry.release()
                return True
        return False

    def _release(self, entry: ConnectionSlot) -> None:
        self.total -= 1
        self.idle.pop(entry, None)
        self._clients[entry.client] -= 1
        if not self._clients[entry.client]:
            del self._clients[entry.client]

    def _pause(
        self,
        listener: socket.socket,
        make: MakeProtocol,
        context: ssl.SSLContext | None,
        error: OSError,
    ) -> None:
        """Stop accepting for a while, because the process or host is out of file descriptors."""
        log.error("cannot accept connections: %s", errno.errorcode.get(error.errno or 0, error))
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        accept = partial(self._accept_some, listener, make, context)
        loop.call_later(PAUSE_S, self._resume, listener, accept)


def _reject(connection: socket.socket, is_plain: bool) -> None:
    """Close a connection, with an error response if it is plain HTTP."""
    error = Unavailable(
        "This gateway has reached its limit of connections.",
        code="too_many_connections",
        retry_after_s=1,
    )
    with connection, suppress(OSError):
        connection.setblocking(False)
        if is_plain:
            connection.send(build_response(error))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1 << 16)


def build_response(error: GatewayError, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return a complete error response, after which the connection is closed."""
    body: Any = orjson.dumps(openai_body(error))
    fields = {
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
        **{name.encode(): value.encode() for name, value in error.headers().items()},
        **dict(headers),
    }
    lines = [name + b": " + value + b"\r\n" for name, value in fields.items()]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body])
