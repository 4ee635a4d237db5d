"""HTTP connection to one worker: pooling, timeouts by stage, errors mapped to engine errors.

Every byte of a worker is received here, within limits on size and time. ``reading.py`` interprets
it.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
import orjson

from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineOverloaded,
    EngineUnreachable,
    redact,
)
from eaglegate.engine.remote.reading import (
    QUESTION,
    REFUSAL,
    ReplyLimits,
    SseDecoder,
    WorkerProtocolError,
    extract_error_message,
    extract_message,
    quote,
    read_json,
)
from eaglegate.engine.remote.refusals import AskedRequest, map_failure, map_refusal
from eaglegate.engine.remote.upstream import ConnectionSettings, Upstream

KEEP_ALIVE_S = 4.0
"""Idle time of a connection, below the 5 seconds after which vLLM's server closes it."""
ASK_S = 10.0
"""Time limit of requests that do not generate."""
END_S = 2.0
"""Seconds from ``[DONE]`` to the end of the stream."""
LONGEST_WAIT_S = 3600.0
"""Longest Retry-After to accept from a worker, in seconds."""
DONE = b"[DONE]"
BUSY = (429, 503)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Errors that occur before the request is sent."""
EVENT_STREAM = "text/event-stream"
REQUEST_ID = "x-request-id"
"""Header with the request id, for servers whose bodies have no id."""


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A complete response of a worker."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status == httpx.codes.OK

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class WorkerConnection:
    """Connection pool to one worker. Create it in the event loop that uses it."""

    def __init__(self, upstream: Upstream, access: ConnectionSettings) -> None:
        self.upstream = upstream
        self._access = access
        self._secrets = _list_secrets(upstream, access)
        self._closed = False
        self.health_path = "/health"
        self._client = httpx.AsyncClient(
            base_url=upstream.url,
            headers={"accept-encoding": "identity"} | _build_authorization(upstream, access),
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
        """Send one request and return the response, whatever its status. Raises EngineDead."""
        method = "GET" if body is None else "POST"
        content = None if body is None else orjson.dumps(body)
        request = self._client.build_request(
            method, path, content=content, headers=_build_headers(body)
        )
        with self._map_errors(f"gave no answer in {patience_s:g} s"):
            async with asyncio.timeout(patience_s):
                response = await self._client.send(request, stream=True)
                try:
                    answer = await self._read_body(response, QUESTION)
                finally:
                    await response.aclose()
        return WorkerReply(response.status_code, answer)

    async def fetch(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], limits: ReplyLimits
    ) -> Any:
        """Fetch an answer that is not streamed. Raises EngineError."""
        deadline = _now() + self._access.first_token_s
        request = self._describe(body, headers)
        async with self._send(path, body, headers, deadline, request) as response:
            async with asyncio.timeout_at(deadline):
                answer = await self._read_body(response, limits.reply)
        return read_json(answer, "the answer")

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str], limits: ReplyLimits
    ) -> AsyncGenerator[Any, None]:
        """Yield the parsed data of a stream's events. Raises EngineError.

        Closing the generator closes the connection, which aborts the request in the worker.
        """
        payloads, frames, is_done = SseDecoder(limits.event), 0, False
        deadline = _now() + self._access.first_token_s
        request = self._describe(body, headers)
        sending = self._send(path, body, headers, deadline, request)
        del body  # with images it is large, and the answer may take long
        async with sending as response:
            _check_type(response)
            async with aclosing(_iter_body(response)) as pieces:
                while (piece := await _next_piece(pieces, deadline)) is not None:
                    for data in payloads.feed(piece):
                        frames += 1
                        if is_done or frames > limits.frames:
                            raise WorkerProtocolError(
                                f"the stream continues after {frames - 1} events"
                            )
                        if data == DONE:
                            is_done = True
                        else:
                            yield await self._parse_event(data, request)
                        deadline = _now() + (END_S if is_done else self._access.idle_s)

    @asynccontextmanager
    async def _send(
        self,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        deadline: float,
        asked_request: AskedRequest,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield the response with status 200. Raises EngineError."""
        content = orjson.dumps(body)
        headers = _build_headers(body) | dict(headers) | {"content-length": str(len(content))}
        # httpx keeps the content of a request until its answer ends, unless it is an iterator.
        pieces = _iterate(content)
        request = self._client.build_request("POST", path, content=pieces, headers=headers)
        del body, content
        with self._map_errors("stopped answering"):
            async with asyncio.timeout_at(deadline):
                response = await self._client.send(request, stream=True)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await self._map_status(response, asked_request)
                yield response
            finally:
                await response.aclose()

    @contextmanager
    def _map_errors(self, problem: str) -> Iterator[None]:
        """Map every error inside to an EngineError that names the worker."""
        try:
            yield
        except WorkerProtocolError as error:
            raise WorkerProtocolError(f"{self.upstream}: {error}") from error
        except EngineError:
            raise
        except TimeoutError:
            raise EngineDead(f"{self.upstream} {problem}.") from None
        except Exception as error:
            raise self._map_exception(error) from error

    async def _read_body(self, response: httpx.Response, max_bytes: int) -> bytes:
        """Read a body of at most ``max_bytes`` bytes. Raises WorkerProtocolError."""
        _check_encoding(response)
        body = bytearray()
        async with aclosing(_iter_body(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > max_bytes:
                    raise WorkerProtocolError(f"an answer is longer than {max_bytes} bytes")
        return bytes(body)

    def _describe(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> AskedRequest:
        request_id = body.get("request_id") or headers.get(REQUEST_ID, "")
        sampling = body.get("sampling_params", body)
        is_structured = bool(sampling.get("structured_outputs") or body.get("response_format"))
        return AskedRequest(str(self.upstream), request_id, is_structured)

    async def _parse_event(self, data: bytes, request: AskedRequest) -> Any:
        payload = read_json(data, "an event of the stream")
        if isinstance(payload, dict) and payload.get("error"):
            raise await self._map_error_event(payload["error"], request)
        return payload

    async def _map_status(self, response: httpx.Response, request: AskedRequest) -> EngineError:
        """Return the error for a status that is not 200."""
        status = response.status_code
        async with asyncio.timeout(ASK_S):
            message = extract_message(await self._read_body(response, REFUSAL), self._secrets)
        if status in BUSY and await self.is_healthy():
            return EngineOverloaded("The workers are at their limits.", _read_retry_after(response))
        if 300 <= status < 500 and status not in BUSY:
            return map_refusal(request, status, message)
        return await self._map_worker_failure(status, message, request)

    async def _map_error_event(self, error: Any, request: AskedRequest) -> EngineError:
        """Return the error for an error event in a stream."""
        status = error.get("code") if isinstance(error, dict) else None
        message = extract_error_message(error, self._secrets)
        if isinstance(status, int) and 400 <= status < 500:
            return map_refusal(request, status, message)
        return await self._map_worker_failure(status, message, request)

    async def _map_worker_failure(
        self, status: Any, message: str, request: AskedRequest
    ) -> EngineError:
        """Return the error for a failure: of this request if the worker is healthy, else of the
        worker."""
        label = status if type(status) is int else "error"
        if status not in (502, 504) and await self.is_healthy():
            return map_failure(request, label, message)
        return EngineDead(f"{self.upstream} failed ({label}): {message}")

    async def is_healthy(self) -> bool:
        try:
            return (await self.ask(self.health_path)).ok
        except EngineDead:
            return False

    def _map_exception(self, error: Exception) -> EngineDead:
        if self._closed:
            return EngineDead("The engine was closed.")
        reason = quote(redact(str(error)), self._secrets) or type(error).__name__
        kind = EngineUnreachable if isinstance(error, NOT_SENT) else EngineDead
        return kind(f"{self.upstream} cannot be reached: {reason}")


async def _next_piece(pieces: AsyncIterator[bytes], deadline: float) -> bytes | None:
    """Return the next piece, or None at the end. Raises TimeoutError, even if no piece has to be
    awaited."""
    if _now() >= deadline:
        raise TimeoutError
    async with asyncio.timeout_at(deadline):
        return await anext(pieces, None)


def _iter_body(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    return cast("AsyncGenerator[bytes, None]", response.aiter_raw())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _build_authorization(upstream: Upstream, access: ConnectionSettings) -> dict[str, str]:
    if upstream.authorization is not None:
        return {"authorization": upstream.authorization}
    return {"authorization": f"Bearer {access.key}"} if access.key else {}


def _list_secrets(upstream: Upstream, access: ConnectionSettings) -> tuple[str, ...]:
    """List the secrets that a worker has received and may repeat in its errors."""
    credentials = (upstream.authorization or "").removeprefix("Basic ")
    password = b64decode(credentials).decode().partition(":")[2]
    return tuple(secret for secret in (access.key, credentials, password) if secret)


async def _iterate(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _build_headers(body: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if body is None else {"content-type": "application/json"}


def _check_type(response: httpx.Response) -> None:
    _check_encoding(response)
    content_type = response.headers.get("content-type", EVENT_STREAM)
    if content_type.partition(";")[0].strip().lower() != EVENT_STREAM:
        raise WorkerProtocolError(f"a stream must be {EVENT_STREAM}, is {quote(content_type)}")


def _check_encoding(response: httpx.Response) -> None:
    """Reject compressed answers, because a few bytes could expand to very many."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise WorkerProtocolError(
            f"an answer is encoded as {quote(encoding)}, which was not asked for"
        )


def _read_retry_after(response: httpx.Response) -> float | None:
    header = response.headers.get("retry-after", "")
    if not (header.isascii() and header.isdecimal() and len(header) < 10):
        return None
    return min(float(header), LONGEST_WAIT_S)
