"""A cheap client of streamed answers, because it shares the machine with the server."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any

COUNT = re.compile(rb'"completion_tokens": ?(\d+)')
END = b"0\r\n\r\n"
ENOUGH = 4096
"""Number of bytes kept from an answer's end, which contains its usage."""


@dataclass
class Answer:
    """One streamed answer, with the times of its parts."""

    first_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    num_chunks: int = 0
    """Number of server-sent events, including the final ``[DONE]``."""
    head: bytes = b""
    tail: bytes = b""

    def count_tokens(self) -> int:
        """Return the token count from the usage, which ``stream_options`` request."""
        return int(COUNT.findall(self.tail)[-1])


def write_post(path: str, body: bytes, key: str = "") -> bytes:
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{authorization}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class StreamClient(asyncio.Protocol):
    """One connection, on which requests are sent one after another."""

    _answer: Answer
    _end_future: asyncio.Future[None] | None = None

    @classmethod
    async def connect(cls, port: int) -> StreamClient:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    async def send(self, request: bytes) -> Answer:
        """Send a request. Raises RuntimeError unless the answer is complete with status 200."""
        self._answer = answer = Answer()
        self._end_future = asyncio.get_running_loop().create_future()
        self._send_time = time.perf_counter()
        self._transport.write(request)
        await self._end_future
        if not answer.head.startswith(b"HTTP/1.1 200") or not answer.tail.endswith(END):
            raise RuntimeError(f"the server answered {answer.head[:2000]!r}")
        return answer

    def data_received(self, data: bytes) -> None:
        answer, now = self._answer, time.perf_counter()
        if answer.head:
            answer.gaps_s.append(now - self._last_time)
        else:
            answer.first_s, answer.head = now - self._send_time, data
        self._last_time = now
        answer.num_chunks += data.count(b"data: {") + data.count(b"data: [")
        answer.tail = (answer.tail + data)[-ENOUGH:]
        if answer.tail.endswith(END) or not answer.head.startswith(b"HTTP/1.1 200"):
            self._end()

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._end_future is not None and not self._end_future.done():
            self._end_future.set_result(None)

    def close(self) -> None:
        self._transport.close()
