"""Frames written straight to the connection arrive as if they had been sent."""

from __future__ import annotations

import asyncio
import socket
import threading
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest

from eaglegate.server.http.middleware import CLOSED_WRITER, WhileConnected, find_writer
from tests.server.conftest import on_a_port
from tests.server.http.conftest import serve_app

START = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = b"x" * 65536


def try_write(scope, data):
    """Whether the writer was open, and ``data`` was written."""
    writer = find_writer(scope)
    if not writer.is_open():
        return False
    writer.write(data)
    return True


def test_written_and_sent_parts_come_in_their_order():
    taken = []

    async def app(scope, receive, send):
        write = partial(try_write, scope)
        taken.append(write(b"too early"))
        await send(START)
        for at in range(20):
            if at % 3 == 2:
                await send({"type": "http.response.body", "body": b"%d " % at, "more_body": True})
            else:
                taken.append(write(b"%d " % at))
        await send({"type": "http.response.body", "body": b"end"})
        taken.append(write(b"too late"))

    with on_a_port(app) as url:
        assert httpx.get(url).text == "".join(f"{at} " for at in range(20)) + "end"
    assert taken == [False] + [True] * 14 + [False]


def test_a_whole_answer_of_a_known_length_is_not_written_to():
    async def app(scope, receive, send):
        await send(START | {"headers": [(b"content-length", b"2")]})
        assert not try_write(scope, b"ok")
        await send({"type": "http.response.body", "body": b"ok"})

    with on_a_port(app) as url:
        assert httpx.get(url).text == "ok"


def test_a_client_that_does_not_read_stops_the_writing_until_it_does():
    full, read = threading.Event(), threading.Event()
    sizes = []

    async def app(scope, receive, send):
        write, parts = partial(try_write, scope), 0
        await send(START)
        while write(PIECE):
            parts += 1
        full.set()
        await asyncio.to_thread(read.wait, 10)
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        assert write(b"")
        await send({"type": "http.response.body", "body": b""})
        sizes.append((parts + 1) * len(PIECE))

    with on_a_port(app) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert full.wait(10)
            read.set()
            body = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert body.count(b"x") == sizes[0]


def test_writes_after_the_client_has_left_are_dropped():
    gone, taken = threading.Event(), []

    async def app(scope, receive, send):
        await send(START)
        assert try_write(scope, b"hello")
        while (await receive())["type"] != "http.disconnect":
            pass
        taken.append(try_write(scope, b"nobody"))
        gone.set()

    with on_a_port(app) as url:
        with httpx.stream("GET", url) as answer:
            assert next(answer.iter_raw()) == b"hello"
        assert gone.wait(10)
    assert taken == [True]


def test_without_uvicorn_there_is_nothing_to_write_to():
    assert find_writer({"type": "http"}) is CLOSED_WRITER
    assert not CLOSED_WRITER.is_open()


@pytest.mark.parametrize("num_requests", [1, 2])
async def test_a_connection_tells_of_a_client_that_leaves(num_requests):
    """The running request hears of it, even with another request behind it; no task waits for
    it."""
    began, ended, heard = asyncio.Event(), asyncio.Event(), []

    async def app(scope, receive, send):
        async def hear():
            message = await receive()
            heard.append(message["type"])
            return message

        assert find_writer(scope).has_request()
        async with WhileConnected(hear, find_writer(scope)):
            began.set()
            await asyncio.Event().wait()
        ended.set()

    async with serve_app(app) as address, asyncio.timeout(20):
        _, client = await asyncio.open_connection(*address)
        client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * num_requests)
        await began.wait()
        assert not heard
        client.close()
        await ended.wait()
    assert heard == ["http.disconnect"]
