"""The servers that the benchmark of the wire puts beside this gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eaglegate.lab.benchmarks import wire
from eaglegate.lab.benchmarks.client import StreamClient, write_post

NOWHERE = Path("nowhere")
CHUNK = b'data: {"choices":[]}\n\n'


def test_every_server_is_the_first_of_as_many_rounds() -> None:
    servers = [wire.Server(name, "", 0) for name in "abc"]
    rounds = ["".join(one.name for one in wire.take_turns(servers, at)) for at in range(6)]
    assert rounds == ["abc", "bca", "cab", "cba", "acb", "bac"]


@pytest.mark.slow
def test_the_floor_streams_and_answers() -> None:
    with wire.run_server("floor", NOWHERE, NOWHERE) as server:
        assert wire.answers(server.url)
        cost, chunks = asyncio.run(wire.load(server, wire.Load(2, 2, 24)))
    assert cost > 0
    assert 0.2 < chunks <= 1.2


class Script(asyncio.Protocol):
    """Sends these parts for every request."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        for part in self._parts:
            self._transport.write(part)
            await asyncio.sleep(0.01)


async def ask(parts: list[bytes], times: int = 1) -> list[tuple[int, int, int]]:
    """Chunks, tokens and gaps of each answer."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Script(parts), "127.0.0.1", 0)
    async with server:
        client = await StreamClient.connect(server.sockets[0].getsockname()[1])
        answers = [await client.send(write_post("/", b"{}", "key")) for _ in range(times)]
        client.close()
    return [(one.num_chunks, one.count_tokens(), len(one.gaps_s)) for one in answers]


async def test_the_client_sends_one_request_after_another() -> None:
    usage = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    parts = [head + CHUNK, CHUNK + CHUNK, usage, b"data: [DONE]\n\n", b"0\r\n\r\n"]
    assert await ask(parts, times=2) == [(5, 7, 4)] * 2


async def test_the_client_raises_for_what_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match="429"):
        await ask([b"HTTP/1.1 429 Too Many Requests\r\n\r\n"])
