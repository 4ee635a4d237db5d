"""The answer to a generation request: an ASGI app that owns status, stream and disconnect.

The status line waits for the first events, so that a refusal by the engine is still a proper HTTP
error. After a grace period the stream opens anyway, and comments keep it alive. A watcher detects
when the client disconnects; the work is then cancelled, which aborts the request in the engine.
Answers that are not streamed work in the same way.

This module also formats server-sent events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from eaglegate.engine.errors import EngineError
from eaglegate.engine.events import Event, EventSink
from eaglegate.server.errors import (
    GatewayError,
    ReaderTooSlow,
    from_engine,
    openai_body,
)
from eaglegate.server.http.middleware import CLOSED_WRITER, BodyWriter, WhileConnected, find_writer

logger = logging.getLogger(__name__)

Run = Callable[[EventSink], Awaitable[None]]
"""Runs a request and pushes its events. Raises GatewayError or EngineError."""
ErrorBody = Callable[[GatewayError], dict[str, Any]]
Headers = tuple[tuple[bytes, bytes], ...]


SSE_CONTENT_TYPE: Final = b"text/event-stream; charset=utf-8"
SSE_HEADERS: Final = (
    (b"content-type", SSE_CONTENT_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
SSE_DONE: Final = b"data: [DONE]\n\n"
SSE_KEEP_ALIVE: Final = b": keep-alive\n\n"


def frame(data: Any) -> bytes:
    """Return one unnamed event with JSON data."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def named_frame(event: str, data: Any) -> bytes:
    """Return one named event with JSON data."""
    return b"event: " + event.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


class StreamEncoder(Protocol):
    """Encodes events as the frames of one API."""

    def encode(self, choice: int, events: list[Event]) -> bytes: ...

    def close(self) -> bytes:
        """Return the bytes that end a complete stream."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """Return the bytes that end a broken stream: an error frame, then a clean end."""
        ...


class Fold(Protocol):
    """Folds events into the response of one API."""

    def add(self, choice: int, events: list[Event]) -> None: ...

    def result(self) -> dict[str, Any]: ...


class StreamOutput(EventSink, Protocol):
    """Output of a stream: encodes the events that it gets, and sends their frames."""

    def flush(self) -> None:
        """Encode the waiting events, before the encoder is closed."""
        ...

    async def close(self, end: bytes) -> None:
        """Send the last frames, and end the stream."""
        ...

    def stop(self) -> None: ...


class PacedFrames(Protocol):
    """Output of a stream of frames that are already encoded."""

    async def put(self, frames: bytes) -> None: ...

    async def close(self, end: bytes) -> None: ...

    def stop(self) -> None: ...


class Pacing(Protocol):
    """Sends streams at a pace of its own. Once ``hurry`` is set, a complete stream ends."""

    def open_output(
        self,
        stream: EventStream,
        encode: Callable[[int, list[Event]], bytes],
        hurry: asyncio.Event,
    ) -> StreamOutput: ...

    def open_stream(self, stream: EventStream, hurry: asyncio.Event) -> PacedFrames: ...


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Times of a stream, in seconds: grace period before the status line is sent without an event,
    interval of keep-alive comments, and how long a client may leave sent data unread.
    """

    first_event_grace_s: float = 10.0
    keep_alive_s: float = 15.0
    reader_s: float = 60.0
    pacing: Pacing | None = None
    """Sends streams at a pace of its own; None sends frames as they are produced."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    """Set when the gateway stops. Paced streams whose answer is complete then end."""


def to_gateway_error(error: GatewayError | EngineError) -> GatewayError:
    return error if isinstance(error, GatewayError) else from_engine(error)


class DisconnectAwareResponse(Response):
    """Does its work while watching for a disconnect. Subclasses define the work.

    Of Starlette's Response it uses only the attributes that FastAPI reads.
    """

    def __init__(self, error_body: ErrorBody) -> None:
        self.status_code, self.background, self.raw_headers = 200, None, []
        self._error_body = error_body
        self._writer: BodyWriter = CLOSED_WRITER

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._writer = find_writer(scope)
        async with WhileConnected(receive, self._writer):
            await self._answer(send)

    async def _answer(self, send: Send) -> None:
        raise NotImplementedError

    async def _send_error(self, error: GatewayError, send: Send) -> None:
        extra = tuple((k.encode(), v.encode()) for k, v in error.headers().items())
        body = orjson.dumps(self._error_body(error))
        await send_json(send, error.status, body, extra)


class FoldedResponse(DisconnectAwareResponse):
    """Response with one JSON object, made by folding the events."""

    def __init__(self, run: Run, fold: Fold, error_body: ErrorBody) -> None:
        super().__init__(error_body)
        self._run = run
        self._fold = fold

    async def _answer(self, send: Send) -> None:
        try:
            await self._run(_FoldSink(self._fold))
        except (GatewayError, EngineError) as error:
            await self._send_error(to_gateway_error(error), send)
        else:
            await send_json(send, 200, orjson.dumps(self._fold.result()))


class _FoldSink:
    """An ``EventSink`` for a fold, always open."""

    def __init__(self, fold: Fold) -> None:
        self.push = fold.add

    def is_open(self) -> bool:
        return True

    async def drain(self) -> None: ...


class StreamedResponse(DisconnectAwareResponse):
    """Response with server-sent events, encoded as they arrive."""

    def __init__(
        self,
        run: Run,
        encoder: StreamEncoder,
        error_body: ErrorBody,
        timing: StreamTiming,
    ) -> None:
        super().__init__(error_body)
        self._run = run
        self._encoder = encoder
        self._timing = timing

    async def _answer(self, send: Send) -> None:
        stream = EventStream(send, self._writer, self._timing)
        stream.open_later()
        output = self._open_output(stream)
        try:
            await self._stream(stream, output, send)
        finally:
            output.stop()
            stream.stop()

    def _open_output(self, stream: EventStream) -> StreamOutput:
        if (pacing := self._timing.pacing) is None:
            return _EncodingSink(stream, self._encoder)
        return pacing.open_output(stream, self._encoder.encode, self._timing.hurry)

    async def _stream(self, stream: EventStream, output: StreamOutput, send: Send) -> None:
        try:
            await self._run(output)
            output.flush()
            end = self._encoder.close()
        except ReaderTooSlow:
            return
        except (GatewayError, EngineError) as error:
            if not stream.begun:
                output.stop()
                stream.stop()
                await self._send_error(to_gateway_error(error), send)
                return
            output.flush()
            end = self._encoder.fail(to_gateway_error(error))
        except Exception:
            if not stream.begun:
                raise
            logger.exception("stream failed")
            end = self._encoder.fail(GatewayError("The gateway failed; the answer is incomplete."))
        with suppress(ReaderTooSlow):
            await output.close(end)


class ReplayedResponse(DisconnectAwareResponse):
    """Response with encoded server-sent events, such as those of a background response."""

    def __init__(self, frames: AsyncGenerator[bytes, None], timing: StreamTiming) -> None:
        super().__init__(openai_body)
        self._frames = frames
        self._timing = timing

    async def _answer(self, send: Send) -> None:
        stream = EventStream(send, self._writer, self._timing)
        pacing = self._timing.pacing
        paced_stream = None if pacing is None else pacing.open_stream(stream, self._timing.hurry)
        try:
            with suppress(ReaderTooSlow):
                await stream.open()
                async with aclosing(self._frames) as frames:
                    async for frame in frames:
                        await (
                            stream.write(frame) if paced_stream is None else paced_stream.put(frame)
                        )
                await (stream if paced_stream is None else paced_stream).close(b"")
        finally:
            if paced_stream is not None:
                paced_stream.stop()
            stream.stop()


class _EncodingSink:
    """An ``EventSink`` that encodes and writes events as they arrive."""

    def __init__(self, stream: EventStream, encoder: StreamEncoder) -> None:
        self.is_open, self.drain = stream.is_open, stream.drain
        self.close, self.stop = stream.close, stream.stop
        self._push, self._encode = stream.push, encoder.encode

    def push(self, choice: int, events: list[Event]) -> None:
        self._push(self._encode(choice, events))

    def flush(self) -> None:
        """Do nothing, since no events wait to be encoded."""


class EventStream:
    """A stream of server-sent events that keeps the connection alive and detects slow clients.

    A timer opens the stream after the grace period and sends keep-alive comments, until ``stop``.
    """

    def __init__(self, send: Send, writer: BodyWriter, timing: StreamTiming) -> None:
        self._send = send
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._timing = timing
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._opener: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopped = False
        self._is_cut = False
        """True while part of a frame still has to be written."""
        self._pending: list[bytes] = []
        """Frames that wait for a slow client or for the status line."""
        self._draining = asyncio.Lock()
        self.begun = False
        """True once the status line is sent or about to be sent."""

    def open_later(self) -> None:
        """Open the response after the grace period, unless an event opens it before."""
        self._timer = self._loop.call_later(self._timing.first_event_grace_s, self._open_late)

    def _open_late(self) -> None:
        self.begun = True
        self._opener = self._loop.create_task(self._begin())

    async def open(self) -> None:
        """Send the status line, unless it was sent."""
        if self._opener is not None:
            await self._opener
        elif not self.begun:
            if self._timer is not None:
                self._timer.cancel()
            await self._begin()

    def is_open(self) -> bool:
        return not (self._pending or self._is_cut) and self._writer.is_open()

    def push(self, data: bytes) -> None:
        """Write ``data`` immediately, or keep it for ``drain``.

        ``drain`` writes a large frame as fast as the client reads it.
        """
        if len(data) <= PIECE and self.is_open():
            self._writer.write(data)
            self._last = self._clock()
        else:
            self._pending.append(data)

    async def drain(self) -> None:
        """Write the kept frames. Waits while the client's backlog is full. Raises ReaderTooSlow."""
        async with self._draining:
            while self._pending:
                await self.open()
                await self.write(self._pending.pop(0))

    async def _begin(self) -> None:
        self.begun = True
        start = {"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)}
        await self._send(start)
        self._last = self._clock()
        if not self._stopped:  # the answer may have ended while the status line was being sent
            self._timer = self._loop.call_later(self._timing.keep_alive_s, self._keep_alive)

    def stop(self) -> None:
        """Stop the timers and tasks of the stream, and start no new ones."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._opener, self._keeper):
            if task is not None:
                task.cancel()

    async def write(self, data: bytes) -> None:
        if len(data) > PIECE:
            await self._write_large(data)
        elif data:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        if self._writer.is_open():
            self._writer.write(data)
        else:
            await self._put({"type": "http.response.body", "body": data, "more_body": True})
        self._last = self._clock()

    async def _write_large(self, data: bytes) -> None:
        """Write a large frame as fast as the client reads it, without comments between its
        pieces.
        """
        self._is_cut = True
        try:
            for piece in cut(data):
                await self._write(piece)
        finally:
            self._is_cut = False

    async def close(self, data: bytes) -> None:
        await self.open()
        await self.drain()
        self.stop()
        if len(data) > PIECE:
            await self._write_large(data)
            data = b""
        last_message: Message = {"type": "http.response.body", "body": data}
        await (self._send(last_message) if self._writer.is_open() else self._put(last_message))

    async def _put(self, message: Message) -> None:
        """Send a message, waiting while the client's backlog is full. Raises ReaderTooSlow."""
        try:
            async with asyncio.timeout(self._timing.reader_s):
                await self._send(message)
        except TimeoutError:
            duration = f"{self._timing.reader_s:g} s"
            raise ReaderTooSlow(f"The client read nothing for {duration}.") from None

    def _keep_alive(self) -> None:
        """Send a comment if the stream has been silent for too long, and schedule the next
        check.
        """
        now, interval_s = self._clock(), self._timing.keep_alive_s
        is_silent = now >= self._last + interval_s and not self._is_cut
        if is_silent and (self._keeper is None or self._keeper.done()):
            self._keeper = self._loop.create_task(self._write_comment())
        deadline = self._last + interval_s
        self._timer = self._loop.call_at(
            deadline if deadline > now else now + interval_s, self._keep_alive
        )

    async def _write_comment(self) -> None:
        with suppress(ReaderTooSlow):  # the next write of the stream raises it, too
            await self.write(SSE_KEEP_ALIVE)


PIECE = 64 << 10
"""Bytes passed to the connection at a time, since it buffers everything that a slow client has not
read.
"""
MIN_RATE = 64 << 10
READ_S = 60.0
"""Seconds that a client may take to read an answer, plus one second for every ``MIN_RATE``
bytes.
"""


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """Send a complete JSON response, in pieces if it is large. A client that does not read it in
    time is cut off.
    """
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_S + len(body) / MIN_RATE):
            for piece in cut(body[:-PIECE]):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": body[-PIECE:]})


def cut(data: bytes) -> Iterator[bytes]:
    """Split ``data`` into pieces of at most ``PIECE`` bytes."""
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


class JsonBytesResponse(Response):
    """Response with encoded JSON. Large content is sent as fast as the client reads it."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= PIECE:
            await super().__call__(scope, receive, send)
            return
        async with WhileConnected(receive, find_writer(scope)):
            await send_json(send, self.status_code, bytes(self.body))


def json_response(content: Any) -> Response:
    return JsonBytesResponse(orjson.dumps(content))
