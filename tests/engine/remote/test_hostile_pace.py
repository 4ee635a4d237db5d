"""A hostile worker takes a bounded share of each turn of the event loop, and of the time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import h11
import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.remote import connection
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.reading import MOST_PIECES, ReplyLimits, SseDecoder
from eaglegate.engine.remote.transport import EVENT_COST, MAX_HEAD_BYTES, TURN_BYTES
from eaglegate.engine.remote.upstream import ConnectionSettings, Upstream
from tests.engine.remote.bad_workers import BadWorker, Talk, listening, raw, repeats, says
from tests.engine.remote.stand_in_worker import StandIn, chunk, end, serving
from tests.engine.remote.test_bad_workers import engine_at, take
from tests.engine.supervision.mortal import until

pytestmark = pytest.mark.thorough

PATIENT = ConnectionSettings(connect_s=5.0, first_token_s=300.0, idle_s=60.0, start_s=1.0)
LIMITS = ReplyLimits(event=32 << 20, whole=32 << 20, frames=5000, tokens=1000)
STREAM = b"content-type: text/event-stream\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + STREAM + b"transfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": []}\n\n'


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


HOSTILE: dict[str, Talk] = {
    "a line without an end in chunks of one byte": raw(CHUNKED, chunks(*[b"x"] * 9999)),
    "an event without an end in chunks of one byte": raw(
        CHUNKED + chunks(b"data: "), chunks(*[b"x"] * 9999)
    ),
    "comments of one byte": raw(CHUNKED, chunks(b":\n" * 20_000)),
    "comments of one byte in chunks of their own": raw(CHUNKED, chunks(*[b":\n"] * 9999)),
    "continue for ever": raw(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4000),
    "early hints for ever": raw(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 4000),
    "many events in one packet": repeats(EVENT * 4000, content_type="text/event-stream"),
    "300 MB in one line": repeats(b"x" * (1 << 20), content_type="text/event-stream"),
    "300 MB in one event": repeats(
        b"x" * (1 << 20), first=b"data: ", content_type="text/event-stream"
    ),
}


@dataclass
class Work:
    """The most work done for a hostile worker between two turns of the event loop."""

    http_events: int = 0
    stream_bytes: int = 0
    events: int = 0

    def raise_to(self, other: Work) -> None:
        for name, value in vars(other).items():
            setattr(self, name, max(getattr(self, name), value))


@contextmanager
def counting(monkeypatch) -> Iterator[Work]:
    """Yields the most of any turn."""
    now, most = Work(), Work()
    next_event, feed = h11.Connection.next_event, SseDecoder.feed
    parse = WorkerConnection._parse_event

    def count_next(self):
        now.http_events += self.our_role is h11.CLIENT
        return next_event(self)

    def count_feed(self, data):
        now.stream_bytes += len(data)
        return feed(self, data)

    async def count_parse(self, data, asked):
        now.events += 1
        return await parse(self, data, asked)

    async def turn() -> None:
        while True:
            most.raise_to(now)
            vars(now).update(vars(Work()))
            await asyncio.sleep(0)

    monkeypatch.setattr(h11.Connection, "next_event", count_next)
    monkeypatch.setattr(SseDecoder, "feed", count_feed)
    monkeypatch.setattr(WorkerConnection, "_parse_event", count_parse)
    turning = asyncio.create_task(turn())
    try:
        yield most
    finally:
        turning.cancel()


@asynccontextmanager
async def connected(url: str, access: ConnectionSettings = PATIENT):
    link = WorkerConnection(Upstream.parse(url), access)
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


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_turn_of_the_event_loop_has_a_bounded_part_of_a_hostile_answer(name, monkeypatch):
    bad = listening(BadWorker({"/": HOSTILE[name], "/health": says(b"")}))
    async with bad as worker, connected(worker.url) as link:
        with counting(monkeypatch) as most:
            assert isinstance(await read_all(link), EngineDead)
        assert most.http_events <= 100
        assert most.stream_bytes <= TURN_BYTES + 4096
        assert most.events <= TURN_BYTES // EVENT_COST + 1
        await until(lambda: not worker.open)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_stream_of_another_worker_goes_on_beside_a_hostile_one(name):
    good = StandIn(lambda _: [*(chunk(at) for at in range(20)), chunk(20, finish="length"), end()])
    bad = listening(BadWorker({"/": HOSTILE[name], "/health": says(b"")}))
    async with (
        bad as worker,
        serving(good.app()) as url,
        connected(worker.url) as link,
        engine_at(url, access=PATIENT) as engine,
    ):
        flood = asyncio.create_task(read_all(link))
        await until(lambda: worker.sent or worker.open)
        assert await take(engine) is None
        flood.cancel()
        with suppress(asyncio.CancelledError):
            await flood


async def test_a_line_of_one_byte_chunks_is_given_up_soon_and_not_read_to_its_limit():
    bad = listening(BadWorker({"/": HOSTILE["an event without an end in chunks of one byte"]}))
    async with bad as worker, connected(worker.url) as link:
        said = str(await read_all(link))
    pieces = re.search(r"bytes of an answer came in (\d+) pieces", said)
    assert pieces and int(pieces[1]) < 1.1 * MOST_PIECES


@pytest.mark.parametrize("name", ["continue for ever", "early hints for ever"])
async def test_informational_responses_are_read_up_to_the_limit_of_a_head(name):
    bad = listening(BadWorker({"/": HOSTILE[name]}))
    async with bad as worker, connected(worker.url) as link:
        assert f"no complete head in its first {MAX_HEAD_BYTES}" in str(await read_all(link))


async def test_a_few_informational_responses_and_a_long_head_are_read():
    head = b"HTTP/1.1 200 OK\r\n" + b"x-more: %s\r\n" % (b"y" * 20_000) + STREAM
    body = EVENT * 3 + b"data: [DONE]\n\n"
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + head + b"content-length: %d\r\n\r\n" % len(body)

    async def talk(worker, writer, *_):
        await worker.write(writer, answer + body)

    async with listening(BadWorker({"/": talk})) as worker, connected(worker.url) as link:
        assert await read_all(link) is None


async def test_every_request_of_a_connection_has_the_limit_for_itself():
    opened = 0

    async def handle(reader, writer):
        nonlocal opened
        opened += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with connected(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as link:
        for _ in range(2 * MAX_HEAD_BYTES // 40):
            assert (await link.ask("/health")).ok
    server.close()
    assert opened == 1


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
