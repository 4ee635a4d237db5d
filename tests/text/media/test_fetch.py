"""Images are fetched from public addresses of the operator's hosts, and from nowhere else."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Event

import httpcore
import pytest
from cryptography import x509

from eaglegate.text.media import fetch
from eaglegate.text.media.fetch import ImageFetcher, resolve_name
from eaglegate.text.media.reader import ImageReader
from eaglegate.text.media.source import ImageLimits, ImageRefused, ImageSource
from tests.certificates import self_signed
from tests.text.media.pictures import make_picture

PUBLIC = "93.184.215.14"
HOSTS = ("images.example", "other.example", "images.example:8443")
URL = "http://images.example/cat.png?token=secret"
MAX_BYTES = 10_000
PICTURE = make_picture()
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For fetchers that need none: reading those of the machine takes longer than a test."""


class Site:
    """A server with one answer for each path, its names, and the network to it.

    Each connection to a public address ends at the server. ``dials`` has the addresses.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.addresses: list[list[str]] = [[PUBLIC]]
        self.dials: list[tuple[str, int]] = []
        self.requests: list[bytes] = []
        self.reads: list[int] = []
        """Bytes that the client wanted at most, by reads."""
        self.keeps_connections = False
        self.pause_s = 0.0
        self.port = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the first addresses, and the next ones when it is asked again."""
        return self.addresses.pop(0) if len(self.addresses) > 1 else self.addresses[0]

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            await self._answer(reader, writer)
            while self.keeps_connections:
                await self._answer(reader, writer)
        with suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        data = self.answers[head.split()[1].decode().partition("?")[0]]
        for piece in [data[i : i + 1] for i in range(len(data))] if self.pause_s else [data]:
            writer.write(piece)
            await asyncio.sleep(self.pause_s)
        await writer.drain()


class Network(httpcore.AsyncNetworkBackend):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(self, host, port, *others, **options) -> httpcore.AsyncNetworkStream:
        self._site.dials.append((host, port))
        if not ipaddress.ip_address(host).is_global:
            raise AssertionError(f"connected to {host}")
        port = self._site.port
        stream = await self._network.connect_tcp("127.0.0.1", port, *others, **options)
        read = stream.read

        async def record(max_bytes: int, timeout: float | None = None) -> bytes:
            self._site.reads.append(max_bytes)
            return await read(max_bytes, timeout)

        stream.read = record
        return stream


def answer(body: bytes = PICTURE, status: str = "200 OK", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return answer(b"", status, f"Location: {location}")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.accept, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()
    await server.wait_closed()
    for task in site.tasks:
        task.cancel()
    await asyncio.gather(*site.tasks, return_exceptions=True)


@pytest.fixture
async def fetcher(site) -> AsyncIterator[ImageFetcher]:
    fetcher = ImageFetcher(HOSTS, site.resolve, Network(site), NO_CERTIFICATES)
    yield fetcher
    await fetcher.aclose()


async def refuse(fetcher: ImageFetcher, url: str = URL) -> str:
    with pytest.raises(ValueError, match=r"[Ss]end a data: URL") as refusal:
        await fetcher.fetch(url, MAX_BYTES)
    message = str(refusal.value)
    assert "secret" not in message
    assert "127.0.0.1" not in message
    return message


async def test_an_image_is_fetched(site, fetcher) -> None:
    site.answers["/cat.png"] = answer()
    assert await fetcher.fetch(URL, MAX_BYTES) == PICTURE
    assert site.dials == [(PUBLIC, 80)]
    head = site.requests[0].lower()
    assert head.startswith(b"get /cat.png?token=secret http/1.1\r\n")
    assert b"host: images.example\r\n" in head
    assert b"cookie" not in head
    assert b"authorization" not in head


async def test_each_image_has_a_connection_of_its_own(site, fetcher) -> None:
    site.answers["/cat.png"] = answer()
    site.keeps_connections = True
    for _ in range(2):
        assert await fetcher.fetch(URL, MAX_BYTES) == PICTURE
    assert len(site.dials) == 2


async def test_few_chunks_are_parsed_before_others_have_their_turn(site, fetcher) -> None:
    head = "HTTP/1.1 100 Continue\r\n\r\n" * 1000 + "HTTP/1.1 200 OK\r\n"
    chunks = b"1\r\nx\r\n" * MAX_BYTES + b"0\r\n\r\n"
    site.answers["/cat.png"] = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks
    assert await fetcher.fetch(URL, MAX_BYTES) == b"x" * MAX_BYTES
    assert max(site.reads) <= 4096


async def test_long_urls_are_refused_unread(site, fetcher) -> None:
    reason = await refuse(fetcher, "http://images.example/" + "é" * 100_000)
    assert "at most 8192 characters; this one has 100022" in reason
    assert site.dials == []


async def test_proxies_of_the_environment_are_not_used(site, fetcher, monkeypatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    site.answers["/cat.png"] = answer()
    assert await fetcher.fetch(URL, MAX_BYTES) == PICTURE


async def test_other_hosts_are_refused_without_a_connection(site, fetcher) -> None:
    for url in (
        "https://evil.example/?secret",
        "file:///secret",
        "http://127.0.0.1/secret",
        "secret",
    ):
        assert await refuse(fetcher, url) == (
            "This gateway fetches images only from images.example, other.example, "
            "images.example:8443; send a data: URL."
        )
    assert site.dials == []


@pytest.mark.parametrize("addresses", [["127.0.0.1"], [PUBLIC, "192.168.0.1"], ["::1", PUBLIC]])
async def test_private_addresses_are_refused_without_a_connection(site, fetcher, addresses) -> None:
    site.addresses = [addresses]
    assert "an address that is not public" in await refuse(fetcher)
    assert site.dials == []


async def test_a_name_that_changes_its_address_gains_nothing(site, fetcher) -> None:
    """The connection goes to the address that was checked; a redirect's is checked again."""
    site.addresses = [[PUBLIC], ["127.0.0.1"]]
    site.answers["/cat.png"] = answer()
    assert await fetcher.fetch(URL, MAX_BYTES) == PICTURE
    site.addresses = [[PUBLIC], ["127.0.0.1"]]
    site.answers["/cat.png"] = redirect("/dog.png")
    assert "not public" in await refuse(fetcher)
    assert {address for address, _ in site.dials} == {PUBLIC}


async def test_a_name_without_an_address(site, fetcher) -> None:
    site.addresses = [[]]
    assert "its host has no address" in await refuse(fetcher)


async def test_a_second_address_is_tried(site, fetcher, monkeypatch) -> None:
    site.addresses = [["8.8.8.8", PUBLIC]]
    connect = Network.connect_tcp

    async def refuse_first(self, host, port, timeout, *others, **options):
        assert timeout == fetch.CONNECT_S
        if host == "8.8.8.8":
            raise httpcore.ConnectTimeout
        others = (port, timeout, *others)
        return await connect(self, host, *others, **options)

    monkeypatch.setattr(Network, "connect_tcp", refuse_first)
    site.answers["/cat.png"] = answer()
    assert await fetcher.fetch(URL, MAX_BYTES) == PICTURE


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_redirects_within_a_host_are_followed(site, fetcher, status) -> None:
    site.answers |= {
        "/cat.png": redirect("dog.png", status),
        "/dog.png": redirect("http://images.example:8443/bird.png", status),
        "/bird.png": answer(),
    }
    assert await fetcher.fetch(URL, MAX_BYTES) == PICTURE
    assert site.dials == [(PUBLIC, 80), (PUBLIC, 80), (PUBLIC, 8443)]


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.example/cat.png",
        "http://other.example/cat.png",
        "//evil.example/cat.png",
        "http://127.0.0.1/",
        "http://images.example:22/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "http://[::1",
    ],
)
async def test_redirects_elsewhere_are_refused(site, fetcher, location) -> None:
    site.answers["/cat.png"] = redirect(location)
    assert "its host redirected to another one" in await refuse(fetcher)
    assert len(site.dials) == 1


async def test_redirects_without_end_are_refused(site, fetcher) -> None:
    site.answers["/cat.png"] = redirect("/cat.png")
    assert "redirected more than 3 times" in await refuse(fetcher)
    assert len(site.dials) == 4


@pytest.mark.parametrize(
    "response, reason",
    [
        (answer(b"", "404 Not Found"), "status 404"),
        (answer(b"", "204 No Content"), "status 204"),
        (answer(b"", "206 Partial Content"), "status 206"),
        (answer(b"", "302 Found"), "status 302"),
        (answer(PICTURE, "200 OK", "Content-Encoding: gzip"), "compressed"),
        (answer(bytes(MAX_BYTES + 1)), "more than 10000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1 << 20), "more than 10000 bytes"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" * 100,
            "failed",
        ),
        (answer()[:-100], "failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "failed"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", "failed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "failed"),
        (b"", "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_other_answers_are_refused(site, fetcher, response, reason) -> None:
    site.answers["/cat.png"] = response
    assert reason in await refuse(fetcher)


async def test_a_slow_answer_is_refused(site, fetcher, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "FETCH_S", 0.2)
    site.answers["/cat.png"] = answer()
    site.pause_s = 0.02
    assert "more than 0.2 s" in await refuse(fetcher)


@pytest.mark.parametrize(
    "seconds, reason", [(60, "more than 0.1 s"), (0, "the connection to its host failed")]
)
async def test_a_name_that_does_not_resolve_in_time(site, monkeypatch, seconds, reason) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.sleep(seconds)
        raise OSError("Name or service not known")

    if seconds:
        monkeypatch.setattr(fetch, "FETCH_S", 0.1)
    fetcher = ImageFetcher(HOSTS, resolve, Network(site), NO_CERTIFICATES)
    assert reason in await refuse(fetcher)
    await fetcher.aclose()


async def test_the_resolver_returns_plain_addresses() -> None:
    with ThreadPoolExecutor() as threads:
        assert await resolve_name(threads, "127.0.0.1", 80) == ["127.0.0.1"]
        assert await resolve_name(threads, "[::1]", 80) == ["::1"]


async def test_a_silent_name_server_does_not_delay_prompts(site, monkeypatch) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    began, may_end = asyncio.Event(), Event()
    loop = asyncio.get_running_loop()

    def wait(*_: object, **options: object) -> list[str]:
        loop.call_soon_threadsafe(began.set)
        may_end.wait(60)
        return []

    monkeypatch.setattr(fetch.socket, "getaddrinfo", wait)
    fetcher = ImageFetcher(HOSTS, network=Network(site), tls=NO_CERTIFICATES)
    task = asyncio.create_task(refuse(fetcher))
    try:
        await began.wait()
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "rendered") == "rendered"
    finally:
        may_end.set()
    assert "no address" in await task
    await fetcher.aclose()


@pytest.mark.parametrize("name, is_fetched", [("images.example", True), ("evil.example", False)])
async def test_a_certificate_must_be_the_hosts(site, tmp_path, name, is_fetched) -> None:
    certificate = self_signed(tmp_path / "site.pem", x509.DNSName(name))
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(certificate)
    server = await asyncio.start_server(site.accept, "127.0.0.1", 0, ssl=server_tls)
    site.port = server.sockets[0].getsockname()[1]
    site.answers = {"/cat.png": answer(), "/down": redirect("http://images.example/cat.png")}
    tls = ssl.create_default_context(cafile=str(certificate))
    fetcher = ImageFetcher(HOSTS, site.resolve, Network(site), tls)
    if is_fetched:
        assert await fetcher.fetch("https://images.example/cat.png", MAX_BYTES) == PICTURE
        message = await refuse(fetcher, "https://images.example/down")
        assert "redirected from https to http" in message
    else:
        assert "failed" in await refuse(fetcher, "https://images.example/cat.png")
        assert site.requests == []
    await fetcher.aclose()
    server.close()
    await server.wait_closed()


async def test_certificates_are_read_once(site, monkeypatch) -> None:
    contexts = []

    def create_context() -> ssl.SSLContext:
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return contexts[-1]

    monkeypatch.setattr(ssl, "create_default_context", create_context)
    monkeypatch.setattr(fetch, "CONNECT_S", 0.1)  # the site speaks no TLS
    fetcher = ImageFetcher(HOSTS, site.resolve, Network(site))
    for _ in range(3):
        assert "connection to its host failed" in await refuse(fetcher, "https://images.example/")
    assert len(contexts) == 1
    await fetcher.aclose()


async def test_the_reader_fetches_and_checks_images(site, fetcher) -> None:
    reader = ImageReader(ImageLimits(), fetcher)
    site.answers = {"/cat.png": answer(), "/page": answer(b"<!DOCTYPE html><title>Log in</title>")}
    (image,) = await reader.read([ImageSource("input[0]", URL)])
    assert image.data == PICTURE
    with pytest.raises(ImageRefused, match="this is an HTML page") as refusal:
        await reader.read([ImageSource("input[1]", "http://images.example/page")])
    assert refusal.value.param == "input[1]"
    await reader.aclose()
