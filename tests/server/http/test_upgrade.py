"""An offer to speak another protocol is declined, and the request is served; streams to HTTP/1.0.

Java's HttpClient offers h2c with the first request of a connection, body and all.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from eaglegate.server.http.connection_limits import ConnectionLimits
from eaglegate.server.http.response import send_json
from tests.server.http.conftest import serve_app
from tests.server.http.test_connections import answered, rest

BODY = b'{"model": "demo", "messages": []}'
OFFER = (
    b"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Content-Length: %d\r\nHost: localhost\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    b"Upgrade: h2c\r\nContent-Type: application/json\r\n\r\n%b" % (len(BODY), BODY)
)
CHUNKED = OFFER.split(b"\r\n\r\n")[0].replace(
    b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked"
) + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
PLAIN = b"GET /again HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def echo(scope, receive, send):
    """The path and the body, and the names of headers that came."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    names = b",".join(sorted(name for name, _ in scope["headers"]))
    await send_json(send, 200, b"|".join((scope["path"].encode(), body, names)))


async def stream(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"data: 1\n\n", b"data: 2\n\n"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@asynccontextmanager
async def connected(app=echo):
    limits = ConnectionLimits(connections=4, per_client=4)
    async with serve_app(app, limits) as address:
        reader, writer = await asyncio.open_connection(*address)
        yield reader, writer
        writer.close()


@pytest.mark.parametrize("request_bytes", [OFFER, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("cut", [None, 1, 7, 64, "behind the head"])
async def test_a_body_behind_an_offer_of_h2c_arrives_whole(request_bytes, cut):
    async with connected() as (reader, writer):
        size = request_bytes.index(b"\r\n\r\n") + 4 if cut == "behind the head" else cut
        size = size or len(request_bytes)
        for at in range(0, len(request_bytes), size):
            writer.write(request_bytes[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        said = await answered(reader)
        assert said.startswith(b"HTTP/1.1 200")
        path, body, names = said.split(b"\r\n\r\n")[1].split(b"|")
        assert (path, body) == (b"/v1/chat/completions", BODY)
        assert b"upgrade" not in names.split(b",")


async def test_the_connection_is_kept_and_requests_may_be_sent_ahead():
    async with connected() as (reader, writer):
        writer.write(OFFER + PLAIN + CHUNKED + OFFER)
        paths = [(await answered(reader)).split(b"\r\n\r\n")[1].split(b"|")[:2] for _ in range(4)]
        asked = [b"/v1/chat/completions", BODY]
        assert paths == [asked, [b"/again", b""], asked, asked]
        writer.write(PLAIN)
        assert b"/again" in await answered(reader)


async def test_many_offers_in_one_piece_are_served():
    offer = PLAIN.replace(b"Host", b"Connection: upgrade\r\nUpgrade: h2c\r\nHost")
    async with connected() as (reader, writer):
        writer.write(offer * 500)
        for _ in range(500):
            assert b"/again" in await answered(reader)


async def test_an_offer_does_not_hide_a_request_that_could_be_read_in_two_ways():
    async with connected() as (reader, writer):
        smuggled = CHUNKED.replace(b"Upgrade: h2c", b"Upgrade: h2c\r\nContent-Length: 3")
        writer.write(smuggled)
        assert (await rest(reader)).startswith(b"HTTP/1.1 400")


async def test_a_stream_to_http_1_0_is_not_chunked():
    async with connected(stream) as (reader, writer):
        writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        head, body = (await rest(reader)).split(b"\r\n\r\n", 1)
        assert b"transfer-encoding" not in head.lower()
        assert body == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


async def test_a_whole_answer_to_http_1_0_has_its_length():
    async with connected() as (reader, writer):
        writer.write(OFFER.replace(b"HTTP/1.1", b"HTTP/1.0"))
        said = await rest(reader)
        assert BODY in said
        assert b"content-length" in said.split(b"\r\n\r\n")[0].lower()
