"""Workers that are none, on a real port: bytes that no server should send."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Talk = Callable[["BadWorker", asyncio.StreamWriter, str, dict[str, Any]], Awaitable[None]]
"""Answers one request: the connection, the path, the body."""

HEAD = "HTTP/1.1 {status} X\r\n{headers}connection: close\r\n\r\n"
HTML = b"<!DOCTYPE html><html><body>Sign in to 10.1.2.3 at /etc/secret</body></html>"


@dataclass
class BadWorker:
    """``talks`` by path prefix; the longest one that fits answers. ``sent`` counts body bytes."""

    talks: dict[str, Talk] = field(default_factory=dict)
    url: str = ""
    sent: int = 0
    open: int = 0
    authorizations: list[str] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(
                    line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
                )
                self.authorizations.append(fields.get("authorization", ""))
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                path = head.split()[1]
                prefix = max((p for p in self.talks if path.startswith(p)), key=len)
                await self.talks[prefix](self, writer, path, json.loads(body) if body else {})
        finally:
            self.open -= 1
            writer.close()

    async def write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()
        self.sent += len(data)


@asynccontextmanager
async def listening(worker: BadWorker) -> AsyncIterator[BadWorker]:
    server = await asyncio.start_server(worker.handle, "127.0.0.1", 0)
    worker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()


def head(status: int = 200, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return HEAD.format(status=status, headers=lines).encode()


def says(body: bytes, status: int = 200, **headers: str) -> Talk:
    """These bytes, once."""

    async def talk(worker: BadWorker, writer: asyncio.StreamWriter, *_: Any) -> None:
        await worker.write(writer, head(status, **headers) + body)

    return talk


def repeats(piece: bytes, pause_s: float = 0.0, first: bytes = b"", **headers: str) -> Talk:
    """The same piece for ever."""

    async def talk(worker: BadWorker, writer: asyncio.StreamWriter, *_: Any) -> None:
        await worker.write(writer, head(**headers) + first)
        while True:
            await worker.write(writer, piece)
            await asyncio.sleep(pause_s)

    return talk


async def no_http(worker: BadWorker, writer: asyncio.StreamWriter, *_: Any) -> None:
    await worker.write(writer, b"220 mail.example.org ESMTP\r\n" * 99)


def raw(first: bytes, piece: bytes) -> Talk:
    """No head of our making: the same piece for ever."""

    async def talk(worker: BadWorker, writer: asyncio.StreamWriter, *_: Any) -> None:
        await worker.write(writer, first)
        while True:
            await worker.write(writer, piece)
            await asyncio.sleep(0)

    return talk


async def half_closed(worker: BadWorker, writer: asyncio.StreamWriter, *_: Any) -> None:
    """Take the request, say nothing, and stay connected."""
    writer.write_eof()
    await asyncio.sleep(30)


async def silent(worker: BadWorker, writer: asyncio.StreamWriter, *_: Any) -> None:
    await asyncio.sleep(30)


def stream(*payloads: Any) -> Talk:
    data = b"".join(b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads)
    return says(data + b"data: [DONE]\n\n", content_type="text/event-stream")


def token(token_id: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "token_ids": [token_id], "finish_reason": None} | more]}


ENDING = {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "length"}]}

ANSWERS: dict[str, Talk] = {
    "html": says(HTML, content_type="text/html"),
    "html as a stream": says(HTML * 99, content_type="text/event-stream"),
    "html as json": says(HTML, content_type="application/json"),
    "nothing": says(b"", content_type="text/event-stream"),
    "no http": no_http,
    "headers without an end": raw(b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"y" * 1000 + b"\r\n"),
    "a header without an end": raw(b"HTTP/1.1 200 OK\r\nx: ", b"y" * 65536),
    "continue for ever": raw(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 9),
    "a chunk without an end": raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        b"transfer-encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        b"x" * 65536,
    ),
    "a length below zero": says(b"", content_length="-7"),
    "less than it promised": says(b"data: 1", content_length="9000"),
    "redirect": says(b"", 302, location="http://127.0.0.1:1/elsewhere"),
    "redirect for ever": says(b"", 307, location="/inference/v1/generate"),
    "created": says(b"{}", 201),
    "no content": says(b"", 204),
    "teapot": says(HTML, 418),
    "not found": says(b'{"detail": "Not Found"}', 404),
    "server error of 10 MB": says(b"x" * 10_000_000, 500),
    "error of the wrong shape": says(b'{"error": [[[{"message": {"a": 1}}]]]}', 500),
    "retry after for ever": says(b"{}", 429, retry_after="9" * 4000),
    "half closed": half_closed,
    "silent": silent,
    "slow bytes": repeats(b"d", 0.02, content_type="text/event-stream"),
    "slow comments": repeats(b": still here\n\n", 0.02, content_type="text/event-stream"),
    "a line without an end": repeats(b"x" * 65536, content_type="text/event-stream"),
    "an event without an end": repeats(b"data: x\n" * 8192, content_type="text/event-stream"),
    "events without tokens": repeats(
        b'data: {"choices": []}\n\n' * 99, content_type="text/event-stream"
    ),
    "comments without an end": repeats(b": x\n\n" * 9999, content_type="text/event-stream"),
    "tokens without an end": repeats(
        b"data: " + json.dumps(token(1)).encode() + b"\n\n", content_type="text/event-stream"
    ),
    "goes on behind its end": repeats(
        b'data: {"choices": []}\n\n' * 99,
        first=b"data: " + json.dumps(token(1)).encode() + b"\n\n",
        content_type="text/event-stream",
    ),
    "compressed": says(
        gzip.compress(b"data: x\n" * 1_000_000),
        content_type="text/event-stream",
        content_encoding="gzip",
    ),
    "broken json": says(b"data: {'choices': []}\n\n", content_type="text/event-stream"),
    "nan": says(b'data: {"choices": NaN}\n\n', content_type="text/event-stream"),
    "deep json": says(b"data: " + b"[" * 100_000 + b"\n\n", content_type="text/event-stream"),
    "a list": stream([1, 2]),
    "a string": stream("hello"),
    "a null": stream(None),
    "no choices": stream({"object": "x"}),
    "choices of strings": stream({"choices": ["x"]}),
    "choices as an object": stream({"choices": {"0": {}}}),
    "two choices": stream({"choices": [ENDING["choices"][0]] * 2}),
    "a token as a string": stream(token("7")),
    "a token as a float": stream(token(7.0)),
    "a negative token": stream(token(-1)),
    "a token beyond the vocabulary": stream(token(999_999)),
    "a token as a boolean": stream(token(True)),
    "tokens as an object": stream({"choices": [{"token_ids": {"a": 1}, "finish_reason": None}]}),
    "a finish reason of its own": stream(token(1, finish_reason="because")),
    "an answer that it gives up": stream(token(1, finish_reason="abort")),
    "a finish reason as a list": stream(token(1, finish_reason=["stop"])),
    "an end without a beginning": stream({"choices": [{"finish_reason": None}]}),
    "an error as a number": stream({"error": 7}),
    "an error as a list": stream({"error": [[]]}),
    "an error with a huge code": stream({"error": {"code": 10**30, "message": "x"}}),
    "metrics as a list": stream(token(1) | {"metrics": [1]}),
    "usage as a number": stream(token(1) | {"usage": 7}),
}
"""A bad worker's answers to a request to generate."""

TELLING: dict[str, Talk] = {
    "html": says(HTML, content_type="text/html"),
    "a list": says(b"[1, 2, 3]", content_type="application/json"),
    "a null": says(b"null"),
    "a number": says(b"7"),
    "wrong types": says(b'{"data": [7], "tokens": "many", "choices": 1, "metrics": []}'),
    "wrong names": says(b'{"data": [{"id": {"a": 1}}], "tokens": {"a": 1}, "choices": {}}'),
    "wrong lengths": says(b'{"data": [{"id": "demo", "max_model_len": "long"}], "tokens": [-1]}'),
    "a huge length": says(b'{"data": [{"id": "demo", "max_model_len": 1e400}]}'),
    "20 MB": says(b"[" + b"1," * 10_000_000 + b"1]"),
    "endless": repeats(b"x" * 65536),
    "redirect": says(b"", 302, location="/health"),
    "half closed": half_closed,
    "silent": silent,
    "slow bytes": repeats(b" ", 0.02, content_type="application/json"),
    "compressed": says(gzip.compress(b" " * 10_000_000), content_encoding="gzip"),
    "a bomb of an account": says(
        b'{"choices": [], "metrics": {"speculative_decoding": {"num_spec_tokens": 3, '
        b'"num_draft_tokens": 9, "acceptance_histogram": [1000000000000, 0, 0, 0]}}}'
    ),
    "an account of the wrong shape": says(
        b'{"choices": [], "metrics": {"speculative_decoding": {"num_spec_tokens": "3"}}}'
    ),
    "no utf-8": says(b"\xff\xfe\x00", content_type="application/json"),
}
"""A bad worker's answers to every question of a probe."""
