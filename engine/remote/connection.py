"""HTTP connection to one worker: pooling, timeouts by stage, errors mapped to engine errors.

Every byte a worker sends comes in here, within limits of size and time; ``reading.py`` interprets
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from engine.errors import EngineDead, EngineError, EngineOverloaded, EngineUnreachable, redact
from engine.remote.reading import (
    QUESTION,
    REFUSAL,
    ReplyLimits,
    SseDecoder,
    WorkerProtocolError,
    extract_error_message,
    extract_message,
    map_failure,
    map_refusal,
    quote,
    read_json,
)
from engine.remote.upstream import ConnectionSettings, Upstream

KEEP_ALIVE_S = 4.0
"""Below the 5 seconds after which vLLM's server closes a connection nobody uses."""
ASK_S = 10.0
"""Patience with questions that take no generation."""
END_S = 2.0
"""From the end of a stream's data to the end of the stream."""
LONGEST_WAIT_S = 3600.0
"""The most Retry-After a worker is believed."""
DONE = b"[DONE]"
BUSY = (429, 503)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Nothing of the request has left this machine."""
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A whole answer, within bounds."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status == httpx.codes.OK

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class WorkerConnection:
    """Made in the event loop that uses it."""

    def __init__(self, upstream: Upstream, access: ConnectionSettings) -> None:
        self.upstream = upstream
        self._access = access
        self._closed = False
        self.health_path = "/health"
        self._client = httpx.AsyncClient(
            base_url=upstream.url,
            headers={"accept-encoding": "identity"} | _authorization(upstream, access),
            timeout=httpx.Timeout(access.connect_s, read=None, write=access.first_token_s),
            limits=httpx.Limits(
                max_connections=access.connections,
                max_keepalive_connections=access.connections,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            trust_env=False,
        )

    async def aclose(self) -> None:
        self._closed = True
        await self._client.aclose()

    async def ask(
        self, path: str, body: Mapping[str, Any] | None = None, patience_s: float = ASK_S
    ) -> WorkerReply:
        """One question, one answer of whatever status. Raises EngineDead without one."""
        method = "GET" if body is None else "POST"
        content = None if body is None else orjson.dumps(body)
        request = self._client.build_request(method, path, content=content, headers=_headers(body))
        with self._faults(f"gave no answer in {patience_s:g} s"):
            async with asyncio.timeout(patience_s):
                response = await self._client.send(request, stream=True)
                try:
                    said = await self._body(response, QUESTION)
                finally:
                    await response.aclose()
        return WorkerReply(response.status_code, said)

    async def whole(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], most: ReplyLimits
    ) -> Any:
        """An answer that is not streamed. Raises EngineError."""
        async with self._sent(path, body, headers) as response:
            async with asyncio.timeout(self._access.first_token_s):
                said = await self._body(response, most.event)
        return read_json(said, "the answer")

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], most: ReplyLimits
    ) -> AsyncGenerator[Any, None]:
        """The data of a stream's events, parsed. Raises EngineError.

        Closing it closes the connection, by which the worker aborts the request.
        """
        payloads, frames, done = SseDecoder(most.event), 0, False
        async with self._sent(path, body, headers) as response:
            _check_type(response)
            async with aclosing(_pieces(response)) as pieces:
                until = _clock() + self._access.first_token_s
                while (piece := await _next_piece(pieces, until)) is not None:
                    for data in payloads.feed(piece):
                        frames += 1
                        if done or frames > most.frames:
                            raise WorkerProtocolError(
                                f"the stream goes on after {frames - 1} events"
                            )
                        if data == DONE:
                            done = True
                        else:
                            yield await self._read(data)
                        until = _clock() + (END_S if done else self._access.idle_s)

    @asynccontextmanager
    async def _sent(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request that was taken."""
        content, headers = orjson.dumps(body), _headers(body) | dict(headers)
        request = self._client.build_request("POST", path, content=content, headers=headers)
        with self._faults("stopped answering"):
            async with asyncio.timeout(self._access.first_token_s):
                response = await self._client.send(request, stream=True)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await self._refused(response)
                yield response
            finally:
                await response.aclose()

    @contextmanager
    def _faults(self, silent: str) -> Iterator[None]:
        """Whatever goes wrong inside is the worker's failure: an EngineError, with its name."""
        try:
            yield
        except WorkerProtocolError as error:
            raise WorkerProtocolError(f"{self.upstream}: {error}") from error
        except EngineError:
            raise
        except TimeoutError:
            raise EngineDead(f"{self.upstream} {silent}.") from None
        except Exception as error:
            raise self._gone(error) from error

    async def _body(self, response: httpx.Response, most: int) -> bytes:
        """All of it. Raises WorkerFault when it is more than ``most`` bytes."""
        _check_encoding(response)
        body = bytearray()
        async with aclosing(_pieces(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > most:
                    raise WorkerProtocolError(f"an answer is longer than {most} bytes")
        return bytes(body)

    async def _read(self, data: bytes) -> Any:
        payload = read_json(data, "an event of the stream")
        if isinstance(payload, dict) and payload.get("error"):
            raise await self._failed(payload["error"])
        return payload

    async def _refused(self, response: httpx.Response) -> EngineError:
        """What a status that is not 200 means."""
        status = response.status_code
        async with asyncio.timeout(ASK_S):
            message = extract_message(await self._body(response, REFUSAL))
        if status in BUSY and await self.healthy():
            return EngineOverloaded("The workers are at their limits.", _wait_of(response))
        if 300 <= status < 500 and status not in BUSY:
            return map_refusal(str(self.upstream), status, message)
        return await self._broken(status, message)

    async def _failed(self, error: Any) -> EngineError:
        """What an error within a stream means."""
        status = error.get("code") if isinstance(error, dict) else None
        message = extract_error_message(error)
        if isinstance(status, int) and 400 <= status < 500:
            return map_refusal(str(self.upstream), status, message)
        return await self._broken(status, message)

    async def _broken(self, status: Any, message: str) -> EngineError:
        """This request alone, or the worker?"""
        shown = status if type(status) is int else "error"
        if status not in (502, 504) and await self.healthy():
            return map_failure(str(self.upstream), shown, message)
        return EngineDead(f"{self.upstream} failed ({shown}): {message}")

    async def healthy(self) -> bool:
        try:
            return (await self.ask(self.health_path)).ok
        except EngineDead:
            return False

    def _gone(self, error: Exception) -> EngineDead:
        if self._closed:
            return EngineDead("The engine was closed.")
        told = quote(redact(str(error))) or type(error).__name__
        kind = EngineUnreachable if isinstance(error, NOT_SENT) else EngineDead
        return kind(f"{self.upstream} cannot be reached: {told}")


async def _next_piece(pieces: AsyncIterator[bytes], until: float) -> bytes | None:
    """None at the end. Raises TimeoutError."""
    async with asyncio.timeout_at(until):
        return await anext(pieces, None)


async def _pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for piece in response.aiter_raw():
        yield piece


def _clock() -> float:
    return asyncio.get_running_loop().time()


def _authorization(upstream: Upstream, access: ConnectionSettings) -> dict[str, str]:
    if upstream.authorization is not None:
        return {"authorization": upstream.authorization}
    return {"authorization": f"Bearer {access.key}"} if access.key else {}


def _headers(body: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if body is None else {"content-type": "application/json"}


def _check_type(response: httpx.Response) -> None:
    _check_encoding(response)
    given = response.headers.get("content-type", EVENT_STREAM)
    if given.partition(";")[0].strip().lower() != EVENT_STREAM:
        raise WorkerProtocolError(f"a stream must be {EVENT_STREAM}, is {quote(given)}")


def _check_encoding(response: httpx.Response) -> None:
    """Nothing compressed was asked for: a few bytes could become very many."""
    given = response.headers.get("content-encoding", "identity")
    if given.strip().lower() != "identity":
        raise WorkerProtocolError(
            f"an answer is encoded as {quote(given)}, which was not asked for"
        )


def _wait_of(response: httpx.Response) -> float | None:
    given = response.headers.get("retry-after", "")
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        return None
    return min(float(given), LONGEST_WAIT_S)
