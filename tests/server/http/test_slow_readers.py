"""Readers of what is stored: what they may hold, and what a slow one keeps in memory."""

from __future__ import annotations

import asyncio
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from eaglegate.engine.events import Event
from eaglegate.server.access.budget import RequestBudget
from eaglegate.server.access.memory import MemoryMonitor
from eaglegate.server.errors import GatewayError
from eaglegate.server.http import response as http_response
from eaglegate.server.http.middleware import EXTENSION, ClosedWriter
from eaglegate.server.http.response import (
    PIECE,
    ReplayedResponse,
    StreamedResponse,
    StreamTiming,
)
from eaglegate.server.store.base import StoredConversation, StoredResponse
from tests.server.conftest import make_scope, read_head_only, wait_until

MB = 1_000_000
READ = ("/v1/responses/resp_1", "/v1/responses/resp_1/input_items", "/v1/conversations/c/items",
        "/v1/conversations/c/items/msg_1")  # fmt: skip


async def store_large(lab, num_bytes=MB, owner=""):
    item = {"id": "msg_1", "type": "message", "content": "x" * num_bytes}
    response = {"id": "resp_1", "status": "completed", "output": [item]}
    await lab.gateway.store.put(StoredResponse("resp_1", owner, time.time(), response, [item]))
    conversations = lab.gateway.store.conversations
    await conversations.put(StoredConversation("c", owner, time.time(), {}))
    await conversations.append("c", [item | {"content": item["content"][: 2 * MB]}])


@pytest.mark.parametrize("path", READ)
async def test_bytes_of_readers_are_bounded_in_total_and_released(lab, path):
    await store_large(lab)
    lab.gateway.budget = RequestBudget(read_bytes=int(2.5 * MB))
    waiting, served = asyncio.Event(), []

    async def read():
        async def stall(message):
            if message["type"] == "http.response.body":
                served.append(message)
                await waiting.wait()

        await lab.app(make_scope("GET", path), asyncio.Event().wait, stall)

    readers = [asyncio.create_task(read()) for _ in range(2)]
    async with asyncio.timeout(5):
        await wait_until(lambda: len(served) == 2)
        refused = await lab.get(path)
        assert (refused.status, refused.json["error"]["code"]) == (429, "request_bytes_exceeded")
        assert "stored answers" in refused.json["error"]["message"]
        assert (await lab.chat()).status != 429, "those who read stop nobody who asks"
        waiting.set()
        await asyncio.gather(*readers)
    assert (await lab.get(path)).status == 200
    assert lab.gateway.budget.stored.total == 0


async def test_one_key_holds_half_of_what_may_be_read(lab):
    lab.admit("ann", "bob")
    await store_large(lab, owner="key:ann")
    lab.gateway.budget = budget = RequestBudget(read_bytes=3 * MB)
    budget.open("ann").hold_stored(MB)
    path = READ[0]
    assert (await lab.get(path, key="ann")).status == 429
    budget.open("bob").hold_stored(MB)
    assert (await lab.get(path, key="bob")).status == 404, "not his"


@pytest.mark.parametrize("path", READ)
async def test_readers_count_where_memory_is_short(lab, path):
    await store_large(lab)
    lab.gateway.memory = memory = MemoryMonitor([])
    memory.shedding = True
    lab.gateway.in_flight = 1
    refused = await lab.get(path)
    assert (refused.status, refused.json["error"]["code"]) == (503, "memory_pressure")
    assert (await lab.get("/v1/models")).status == 200
    assert (await lab.delete("/v1/responses/resp_1")).status == 200


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
async def test_an_answer_of_any_size_is_whole(lab, size):
    await store_large(lab, size)
    answer = await lab.get(READ[0])
    assert answer.json["output"][0]["content"] == "x" * size
    assert int(answer.headers["content-length"]) == len(answer.body)
    head = await lab.head(READ[0])
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == answer.headers["content-length"]


async def test_a_client_that_does_not_read_is_cut_off(lab, monkeypatch):
    monkeypatch.setattr(http_response, "READ_S", 0.01)
    monkeypatch.setattr(http_response, "MIN_RATE", 1 << 40)
    await store_large(lab)

    async with asyncio.timeout(5):
        await lab.app(make_scope("GET", READ[0]), asyncio.Event().wait, read_head_only)
    assert lab.gateway.budget.stored.total == 0


async def test_a_large_frame_goes_out_in_pieces_with_no_comment_between():
    sent = []

    async def send(message):
        sent.append(message.get("body", b""))
        await asyncio.sleep(0.005)

    async def frames():
        yield b"data: " + b"x" * (3 * PIECE) + b"\n\n"

    answer = ReplayedResponse(frames(), StreamTiming(keep_alive_s=0.001))
    async with asyncio.timeout(5):
        await answer(make_scope("GET", "/"), asyncio.Event().wait, send)
    whole = b"".join(sent)
    assert max(map(len, sent)) == PIECE
    frame, _, _ = whole.partition(b"\n\n")
    assert frame == b"data: " + b"x" * (3 * PIECE)


async def test_a_stream_of_a_stored_answer_counts_as_reading_it(lab):
    lab.says("Hello.")
    made = await lab.respond(background=True, instructions="x" * 200)
    path = f"/v1/responses/{made.json['id']}"
    await asyncio.wait({run.task for run in lab.runs._runs.values()})
    assert (await lab.get(f"{path}?stream=true")).status == 200
    lab.gateway.budget = RequestBudget(read_bytes=100)
    assert (await lab.get(f"{path}?stream=true")).status == 429
    assert lab.gateway.budget.stored.total == 0


@pytest.mark.thorough
async def test_slow_readers_on_the_wire_keep_little_in_memory(lab, url):
    """A server that has given an answer to its connection no longer counts it."""
    await store_large(lab, 12 * MB)
    lab.gateway.budget = RequestBudget(read_bytes=30 * MB)
    address = urlsplit(url)
    slow = []
    for _ in range(2):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((address.hostname, address.port))
        reader.sendall(f"GET {READ[0]} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        slow.append(reader)
    async with asyncio.timeout(20):
        await wait_until(lambda: lab.gateway.budget.stored.total >= 24 * MB)
        await asyncio.sleep(0.2)
        assert lab.gateway.budget.stored.total > 24 * MB, "neither was taken for served"
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get(READ[0])).status_code == 429
            for reader in slow:
                reader.close()
            await wait_until(lambda: not lab.gateway.budget.stored.total)
            assert len((await client.get(READ[0], timeout=30)).content) > 12 * MB


class LateWriter(ClosedWriter):
    """A writer that opens while a large frame is being sent."""

    def __init__(self, wire: list[bytes]) -> None:
        self._wire = wire
        self.opened = asyncio.Event()

    def is_open(self) -> bool:
        return self.opened.is_set()

    def write(self, data: bytes) -> None:
        self._wire.append(data)


class Letters:
    """Encodes the first choice as one large frame, and the second as a small one."""

    def encode(self, choice: int, _events: list[Event]) -> bytes:
        return b"b" if choice else b"a" * (3 * PIECE)

    def close(self) -> bytes:
        return b"."

    def fail(self, error: GatewayError) -> bytes:
        raise AssertionError(error)


async def test_no_choice_writes_between_the_pieces_of_anothers_large_frame():
    wire: list[bytes] = []
    writer = LateWriter(wire)

    async def send(message):
        if body := message.get("body"):
            wire.append(body)
            writer.opened.set()
            for _ in range(3):
                await asyncio.sleep(0)

    async def run(sink):
        async def first():
            sink.push(0, [])
            await sink.drain()

        async def second():
            await writer.opened.wait()
            sink.push(1, [])
            if not sink.is_open():
                await sink.drain()

        await asyncio.gather(first(), second())

    answer = StreamedResponse(run, Letters(), lambda _: {}, StreamTiming())
    scope = {"type": "http", "extensions": {EXTENSION: writer}}
    await asyncio.wait_for(answer(scope, asyncio.Event().wait, send), 5)
    assert b"".join(wire) == b"a" * (3 * PIECE) + b"b."


async def test_a_large_frame_of_an_answer_goes_out_in_pieces_though_its_client_keeps_up():
    wire: list[bytes] = []
    writer = LateWriter(wire)
    writer.opened.set()

    async def send(message):
        wire.append(message.get("body", b""))

    async def run(sink):
        sink.push(1, [])
        sink.push(0, [])
        assert not sink.is_open()
        await sink.drain()

    answer = StreamedResponse(run, Letters(), lambda _: {}, StreamTiming())
    scope = {"type": "http", "extensions": {EXTENSION: writer}}
    await asyncio.wait_for(answer(scope, asyncio.Event().wait, send), 5)
    assert b"".join(wire) == b"b" + b"a" * (3 * PIECE) + b"."
    assert max(map(len, wire)) == PIECE
