"""Limits on a client before its request begins: connections, bytes of headers, seconds."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from eaglegate.server.http.connection import TlsSettings
from eaglegate.server.http.connection_limits import (
    RESERVED_FILES,
    ConnectionLimiter,
    ConnectionLimits,
    group_address,
)
from eaglegate.server.http.response import send_json
from tests.certificates import self_signed
from tests.server.conftest import wait_until
from tests.server.http.conftest import serve_app

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy"),
]
PLAIN = TlsSettings()
SMALL = ConnectionLimits(connections=4, per_client=4, head_s=0.5)
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request):
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else None


class Served:
    """An app that answers a GET at once, and others when ``answer`` is set."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.answer = asyncio.Event()
        self.began = asyncio.Semaphore(0)
        self.refused = 0
        self.gate = ConnectionLimiter(limits, self._refuse)
        self.port = 0
        self._open: list[asyncio.StreamWriter] = []

    def _refuse(self) -> None:
        self.refused += 1

    async def app(self, scope, receive, send):
        if scope["method"] == "POST":
            self.began.release()
            while (await receive()).get("more_body"):
                pass
            await self.answer.wait()
        await send_json(send, 200, b"{}")

    async def connect(self, *sent: bytes, source: str = "127.0.0.1"):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(source, 0)
        )
        self._open.append(writer)  # one that is collected hangs up
        for data in sent:
            writer.write(data)
        return reader, writer


@asynccontextmanager
async def serving(limits: ConnectionLimits, tls: TlsSettings = PLAIN):
    made = Served(limits)
    async with serve_app(made.app, made.gate, tls) as (_, made.port):
        try:
            yield made
        finally:
            made.answer.set()
            for writer in made._open:
                writer.close()  # the server would wait for those that send no more


async def answered(reader) -> bytes:
    """One whole answer, and nothing of the next."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def rest(reader) -> bytes:
    """Read until the other side hangs up."""
    with suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 20)
    return b""


async def settled(gate, total):
    await wait_until(lambda: gate.total == total)


async def test_an_idle_connection_makes_room_for_a_new_one():
    async with serving(replace(SMALL, head_s=60)) as served:
        idle = [await served.connect() for _ in range(4)]
        await settled(served.gate, 4)
        reader, writer = await served.connect(GET)
        assert (await answered(reader)).startswith(b"HTTP/1.1 200")
        assert await rest(idle[0][0]) == b"", "the one that was idle the longest"
        assert served.gate.total == 4
        assert not served.refused
        writer.close()


async def test_where_all_are_busy_a_new_connection_is_told_to_come_again():
    async with serving(SMALL) as served:
        busy = [await served.connect(HEAD, b"content-length: 2\r\n\r\n{}") for _ in range(4)]
        for _ in busy:
            await asyncio.wait_for(served.began.acquire(), 20)
        reader, _ = await served.connect(GET)
        said = await rest(reader)
        assert said.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in said
        assert b"too_many_connections" in said
        assert served.refused == 1
        served.answer.set()
        for reader, writer in busy:
            assert (await answered(reader)).startswith(b"HTTP/1.1 200")
            writer.close()
        await settled(served.gate, 0)
        assert not served.gate.idle


async def test_a_client_has_its_share_and_a_named_proxy_more():
    for proxies, total in (("", 2), ("127.0.0.0/8", 4)):
        limits = replace(SMALL, per_client=2, head_s=60, proxies=proxies)
        async with serving(limits) as served:
            for _ in range(6):
                reader, _ = await served.connect(GET)
                await answered(reader)
            assert served.gate.total == total


@contextmanager
def contiguous_files() -> Iterator[int]:
    """No number below the next file's is free; it is the one that comes."""
    taken = [os.dup(0)]
    last = max(int(file.name) for file in Path("/proc/self/fd").iterdir())
    while taken[-1] <= last:
        taken.append(os.dup(0))
    try:
        yield taken[-1] + 1
    finally:
        for file in taken:
            os.close(file)


async def test_files_are_kept_for_others():
    with contiguous_files() as next_file:
        async with serving(replace(SMALL, connections=1000, files=next_file + 8)) as served:
            while not served.refused:
                reader, _ = await served.connect(HEAD, b"content-length: 9\r\n\r\n")
                began = asyncio.create_task(served.began.acquire())
                ended = asyncio.create_task(reader.read(1))
                await asyncio.wait({began, ended}, return_when=asyncio.FIRST_COMPLETED)
            assert 0 < served.gate.total < 9


@pytest.mark.parametrize(
    "dripped",
    [(), (b"\r\n",), (b"G",), (b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (b"GET /" + b"a" * 50,)],
)
async def test_a_request_has_to_come_in(dripped):
    async with serving(SMALL) as served:
        reader, writer = await served.connect()
        with suppress(ConnectionError):
            for data in dripped:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0.1)
        assert (await rest(reader)).startswith(b"HTTP/1.1 408")
        await settled(served.gate, 0)


@pytest.mark.parametrize("dripped", [b"\r\n", b"G", b"GET / HTTP/1.1\r\n"])
async def test_the_next_request_has_to_come_in_as_soon(dripped):
    async with serving(SMALL) as served:
        reader, writer = await served.connect(GET)
        await answered(reader)
        await asyncio.sleep(2 * SMALL.head_s)
        writer.write(GET)
        assert (await answered(reader)).startswith(b"HTTP/1.1 200"), "idle is not late"
        writer.write(dripped)
        assert (await rest(reader)).startswith(b"HTTP/1.1 408")


async def test_a_request_that_has_begun_may_take_its_time():
    async with serving(SMALL) as served:
        reader, writer = await served.connect(HEAD, b"content-length: 2\r\n\r\n")
        await asyncio.sleep(2 * SMALL.head_s)
        writer.write(b"{}")
        await asyncio.sleep(2 * SMALL.head_s)
        served.answer.set()
        assert (await answered(reader)).startswith(b"HTTP/1.1 200")


LARGE = {
    "one header": [HEAD, b"a: " + b"b" * 70_000 + b"\r\n\r\n"],
    "a header without an end": [HEAD, b"a: ", *[b"b" * 65_536] * 40],
    "a name without an end": [HEAD, *[b"a" * 65_536] * 40],
    "many headers": [HEAD, b"a: b\r\n" * 300, b"\r\n"],
    "many bytes in headers": [HEAD, *[b"a: %s\r\n" % (b"b" * 1000)] * 70],
    "a path": [b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"],
    "a path without an end": [b"GET /", *[b"a" * 65_536] * 40],
    "headers of the second request": [GET, HEAD, b"a: b\r\n" * 300, b"\r\n"],
}  # fmt: skip


@pytest.mark.parametrize("what", LARGE)
async def test_a_request_head_has_a_size(what):
    async with serving(replace(SMALL, head_s=60)) as served:
        reader, writer = await served.connect()
        if what == "headers of the second request":
            writer.write(LARGE[what][0])
            await answered(reader)
        with suppress(ConnectionError):
            for data in LARGE[what][what == "headers of the second request" :]:
                writer.write(data)
                await writer.drain()
        said = await rest(reader)
        assert said[:12] in (b"HTTP/1.1 431", b""), said[:200]
        if sum(map(len, LARGE[what])) < 200_000:
            assert b"headers_too_large" in said
        await settled(served.gate, 0)


@pytest.mark.parametrize("trailer", [b"a: b\r\n" * 300, b"a: " + b"b" * 400_000, b"x" * 400_000])
async def test_trailers_have_a_size_too(trailer):
    async with serving(replace(SMALL, head_s=60)) as served:
        reader, writer = await served.connect(
            HEAD, b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        await asyncio.wait_for(served.began.acquire(), 20)
        with suppress(ConnectionError):
            writer.write(trailer)
            await writer.drain()
        assert (await rest(reader))[:12] in (b"HTTP/1.1 431", b"")
        await settled(served.gate, 0)


async def test_an_ordinary_head_and_a_large_body_pass():
    async with serving(SMALL) as served:
        served.answer.set()
        more = b"".join(b"x-%d: %s\r\n" % (at, b"v" * 200) for at in range(200))
        body = b"x" * (4 << 20)
        reader, _ = await served.connect(
            HEAD, more, b"content-length: %d\r\n\r\n" % len(body), body
        )
        assert (await answered(reader)).startswith(b"HTTP/1.1 200")


async def test_invalid_http_is_refused_in_the_api_s_shape():
    async with serving(SMALL) as served:
        reader, _ = await served.connect(b"GET / HTTP/9.9\r\n\r\n")
        said = await rest(reader)
        assert said.startswith(b"HTTP/1.1 400")
        assert b'"code":"invalid_http"' in said


@pytest.mark.parametrize(
    "coding", [b"xchunked", b"gzip, chunked", b"identity", b"chunked\x0b", b""]
)
async def test_a_transfer_encoding_without_a_known_end_is_refused_at_once(coding):
    async with serving(replace(SMALL, head_s=60)) as served:
        reader, _ = await served.connect(HEAD, b"transfer-encoding: " + coding + b"\r\n\r\n{}")
        said = await rest(reader)
        assert said.startswith(b"HTTP/1.1 400"), said
        assert b'"code":"unsupported_transfer_encoding"' in said or b"invalid_http" in said
        await settled(served.gate, 0)


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked "])
async def test_a_chunked_body_is_read(coding):
    async with serving(SMALL) as served:
        served.answer.set()
        reader, _ = await served.connect(
            HEAD, b"transfer-encoding: " + coding + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        assert (await answered(reader)).startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return str(self_signed(tmp_path_factory.mktemp("tls") / "both.pem"))


async def test_handshakes_that_do_not_come_count_and_end(certificate):
    async with serving(SMALL, TlsSettings(certificate)) as served:
        silent = [await served.connect() for _ in range(4)]
        await settled(served.gate, 4)
        late, _ = await served.connect()
        assert await rest(late) == b"", "there is no plain text to refuse in"
        assert served.refused == 1
        for reader, _ in silent:
            await rest(reader)
        await settled(served.gate, 0)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        writer.write(GET)
        assert (await answered(reader)).startswith(b"HTTP/1.1 200")


def test_limits_follow_the_files_there_may_be():
    limits = ConnectionLimits.of(1024)
    assert (limits.connections, limits.files) == (1024 - RESERVED_FILES,) * 2
    assert limits.per_client == limits.connections // 2
    assert ConnectionLimits.of(1024, outgoing=256).connections == 1024 - RESERVED_FILES - 256
    assert ConnectionLimits.of(100).connections == 50
    assert ConnectionLimits.of(1 << 20).connections == 1 << 14
    assert ConnectionLimits.of(1024, connections=10, per_client=3).per_client == 3


def test_clients_are_counted_by_address_or_network():
    assert group_address("10.0.0.1") != group_address("10.0.0.2")
    assert group_address("2001:db8::1") == group_address("2001:db8::2:3") == "2001:db8::/64"
    assert group_address("fe80::1%eth0") == group_address("fe80::2%eth0")


RAISED = """
import resource
from eaglegate.server.http.connection_limits import raise_file_limit
print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_of_files_is_raised_to_the_hard_one():
    command = ["prlimit", "--nofile=256:2000", sys.executable, "-c", RAISED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2000", "2000", "2000"]


async def test_a_client_at_its_limit_closes_nobody_else_s_connections():
    async with serving(ConnectionLimits(connections=8, per_client=2)) as made:
        reader, _ = await made.connect(GET, source="127.0.0.2")
        await answered(reader)
        await made.connect(HEAD + b"content-length: 0\r\n\r\n")
        await made.connect(HEAD + b"content-length: 0\r\n\r\n")
        for _ in range(2):
            await made.began.acquire()
        late, _ = await made.connect()
        assert b" 503 " in await late.read()
        assert (made.refused, made.gate.total) == (1, 3)
        assert not reader.at_eof()
        made.answer.set()


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("first", [b"", b"2\r\n{}\r\n"])
@pytest.mark.parametrize("wrong", [b"zz\r\n", b"2\r\n{}x", b"fffffffffffffffffff\r\n"])
async def test_an_error_inside_a_chunked_body_is_answered(first, wrong):
    async with serving(SMALL) as made:
        reader, _ = await made.connect(CHUNKED + first)
        await made.began.acquire()
        made._open[-1].write(wrong)
        answer = await reader.read()
    assert b" 400 " in answer.splitlines()[0]
    assert b"invalid_http" in answer


@pytest.mark.parametrize("chunks", [1, 40])
async def test_chunk_extensions_are_bounded(chunks):
    """In one chunk, or in many."""
    size = 100_000 // chunks
    extension = b"2;" + b"x" * size + b"\r\n{}\r\n"
    async with serving(SMALL) as made:
        reader, writer = await made.connect(CHUNKED)
        with suppress(ConnectionError):
            for _ in range(chunks):
                writer.write(extension)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        said = await rest(reader)
        assert said[:12] in (b"HTTP/1.1 431", b""), said
        assert chunks > 1 or said
        await settled(made.gate, 0)
