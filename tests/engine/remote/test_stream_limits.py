"""Heads, events and time limits of a worker's stream."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.remote import connection
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.protocols import parse_upstream
from eaglegate.engine.remote.reading import ReplyLimits, SseDecoder
from eaglegate.engine.remote.upstream import ConnectionSettings
from tests.engine.remote.bad_workers import BadWorker, listening

pytestmark = pytest.mark.thorough

PATIENT = ConnectionSettings(connect_s=5.0, first_token_s=300.0, idle_s=60.0, start_s=1.0)
LIMITS = ReplyLimits(event=32 << 20, reply=32 << 20, frames=5000, tokens=1000)
STREAM = b"content-type: text/event-stream\r\n"
EVENT = b'data: {"choices": []}\n\n'


@asynccontextmanager
async def connected(url: str, access: ConnectionSettings = PATIENT):
    link = WorkerConnection(parse_upstream(url), access)
    try:
        yield link
    finally:
        await link.aclose()


async def read_all(link: WorkerConnection, limits: ReplyLimits = LIMITS) -> EngineDead | None:
    try:
        async with aclosing(link.stream("/generate", {}, {}, limits)) as payloads:
            async for _ in payloads:
                pass
    except EngineDead as error:
        return error
    return None


async def test_a_few_informational_responses_and_a_long_head_are_read():
    head = b"HTTP/1.1 200 OK\r\n" + b"x-more: %s\r\n" % (b"y" * 20_000) + STREAM
    body = EVENT * 3 + b"data: [DONE]\n\n"
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + head + b"content-length: %d\r\n\r\n" % len(body)

    async def talk(worker, writer, *_):
        await worker.write(writer, answer + body)

    async with listening(BadWorker({"/": talk})) as worker, connected(worker.url) as link:
        assert await read_all(link) is None


async def test_the_limit_of_the_first_token_counts_from_the_request(monkeypatch):
    """A head at the last moment leaves no second such limit for the body."""
    passed = [0.0]
    monkeypatch.setattr(connection, "_now", lambda: asyncio.get_running_loop().time() + passed[0])

    async def late(worker, writer, *_):
        passed[0] += PATIENT.first_token_s - 1
        await worker.write(writer, b"HTTP/1.1 200 OK\r\n" + STREAM + b"\r\n: here\n\n")
        passed[0] += 2
        for _ in range(100):
            await worker.write(writer, b": still here\n\n")
            await asyncio.sleep(0.01)

    async with listening(BadWorker({"/": late})) as worker, connected(worker.url) as link:
        assert "stopped answering" in str(await read_all(link))


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 4096])
def test_events_are_the_same_however_they_are_cut(cut):
    text = b': hi\r\n\r\ndata: a\ndata:b\n\nid: 7\ndata: {"c":\r\ndata: 1}\r\n\r\ndata:\n\n'
    decoder, found = SseDecoder(100), []
    for at in range(0, len(text), cut):
        found += decoder.feed(text[at : at + cut])
    assert found == [b"a\nb", b'{"c":\n1}', b""]
