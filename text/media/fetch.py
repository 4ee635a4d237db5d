"""Fetching of images over http and https, from hosts that the operator allows.

A URL of a client must never reach this host or its network. So a name is resolved here, the
addresses are checked, and the connection goes to an address that was checked: a name that resolves
differently the next time gains nothing. Proxies of the environment are not used, because they would
resolve the name again.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import httpcore

from eaglegate.text.media.hosts import MediaUrl, is_allowed, is_public, parse_host, parse_url

FETCH_S = 10.0
"""Seconds for one image, with the name's resolution and all redirects."""
CONNECT_S = 3.0
"""Seconds for one of a host's addresses."""
CONNECTIONS = 16
READ_BYTES = 4096
"""Bytes that are read at once. They are parsed at once, in the event loop, and may be a thousand
chunks, or empty answers before the one that counts.
"""
MAX_REDIRECTS = 3
MAX_URL = 8192
"""Characters of a URL. One of 8 MB would hold up the event loop for more than a second."""
REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = (
    ("accept", "image/*"),
    ("accept-encoding", "identity"),
    ("user-agent", "eaglegate"),
)
TRANSPORT_ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
    OSError,
    UnicodeError,
)
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Resolver of a host and a port. Returns IP addresses. Raises OSError."""


class FetchFailed(Exception):
    """The image could not be fetched. The message is the reason, for the client."""


class ImageFetcher:
    """HTTP client for images, with at most ``CONNECTIONS`` connections."""

    def __init__(
        self,
        hosts: Sequence[str],
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = tuple(map(parse_host, hosts))
        # A name server that is silent holds a thread for half a minute. asyncio's own threads also
        # render prompts.
        self._threads = ThreadPoolExecutor(CONNECTIONS, "resolver")
        self._pool = httpcore.AsyncConnectionPool(
            # Without one, each connection would read all certificates again, within the event loop.
            tls or httpcore.default_ssl_context(),
            max_connections=CONNECTIONS,
            max_keepalive_connections=0,
            network_backend=_PublicNetwork(
                resolve or partial(resolve_name, self._threads), network or httpcore.AnyIOBackend()
            ),
        )

    async def fetch(self, text: str, max_bytes: int) -> bytes:
        """Return what a URL refers to. Raises ValueError with a message for the client."""
        url = self._parse(text)
        try:
            async with asyncio.timeout(FETCH_S):
                return await self._follow(url, max_bytes)
        except TimeoutError:
            reason = f"it took more than {FETCH_S:g} s"
        except FetchFailed as error:
            reason = str(error)
        except TRANSPORT_ERRORS:
            reason = "the connection to its host failed"
        raise ValueError(f"The image could not be fetched: {reason}. Send a data: URL.")

    async def aclose(self) -> None:
        await self._pool.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _parse(self, text: str) -> MediaUrl:
        if len(text) > MAX_URL:
            raise ValueError(
                f"The URL of an image may have at most {MAX_URL} characters; this one has "
                f"{len(text)}. Send a data: URL."
            )
        try:
            url = parse_url(text)
        except ValueError:
            url = None
        if url is None or not is_allowed(url, self._hosts):
            names = ", ".join(map(str, self._hosts))
            raise ValueError(f"This gateway fetches images only from {names}; send a data: URL.")
        return url

    async def _follow(self, url: MediaUrl, max_bytes: int) -> bytes:
        """Raises FetchFailed and TRANSPORT_ERRORS."""
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(url, max_bytes)
            if isinstance(answer, bytes):
                return answer
            url = self._check_redirect(url, answer)
        raise FetchFailed(f"its host redirected more than {MAX_REDIRECTS} times")

    async def _get(self, url: MediaUrl, max_bytes: int) -> bytes | str:
        """Return the image, or the location of a redirect."""
        async with self._pool.stream(
            "GET",
            httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.path),
            headers=HEADERS,
            extensions={"timeout": {"connect": CONNECT_S}},
        ) as response:
            headers = {name.lower(): value for name, value in response.headers}
            if response.status in REDIRECTS and b"location" in headers:
                return headers[b"location"].decode("latin-1")
            if response.status != 200:
                raise FetchFailed(f"its host answered with status {response.status}")
            if headers.get(b"content-encoding", b"identity") != b"identity":
                raise FetchFailed("its host compressed it")
            data = bytearray()
            async for chunk in response.aiter_stream():
                data += chunk
                if len(data) > max_bytes:
                    raise FetchFailed(f"it has more than {max_bytes} bytes")
            return bytes(data)

    def _check_redirect(self, url: MediaUrl, location: str) -> MediaUrl:
        """Raises FetchFailed."""
        try:
            target = url.redirect(location)
        except ValueError:
            target = None
        if target is None or target.host != url.host or not is_allowed(target, self._hosts):
            raise FetchFailed("its host redirected to another one")
        if (url.scheme, target.scheme) == ("https", "http"):
            raise FetchFailed("its host redirected from https to http")
        return target


async def resolve_name(threads: Executor, host: str, port: int) -> list[str]:
    """Return the IP addresses of a host. Raises OSError."""
    work = partial(socket.getaddrinfo, host.strip("[]"), port, type=socket.SOCK_STREAM)
    entries = await asyncio.get_running_loop().run_in_executor(threads, work)
    return [str(address[0]) for *_, address in entries]


class _SmallReads(httpcore.AsyncNetworkStream):
    """Stream that reads few bytes at once."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self.write, self.aclose = stream.write, stream.aclose  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(min(max_bytes, READ_BYTES), timeout)

    async def start_tls(self, *arguments: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _SmallReads(await self._stream.start_tls(*arguments, **options))


class _PublicNetwork(httpcore.AsyncNetworkBackend):
    """Network that connects to public addresses only."""

    def __init__(self, resolve: Resolve, network: httpcore.AsyncNetworkBackend) -> None:
        self._resolve = resolve
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that accepts. Raises FetchFailed if any is not public."""
        addresses = await self._resolve(host, port)
        if not all(map(is_public, addresses)):
            raise FetchFailed("its host has an address that is not public")
        error: Exception = FetchFailed("its host has no address")
        for address in addresses:
            try:
                return _SmallReads(
                    await self._network.connect_tcp(
                        address, port, timeout, local_address, socket_options
                    )
                )
            except TRANSPORT_ERRORS as connect_error:
                error = connect_error
        raise error
