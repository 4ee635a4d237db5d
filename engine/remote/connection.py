"""HTTP to one worker: pooled connections, patience by stage, errors as the engine's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import orjson

from engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineUnreachable,
    RequestRejected,
)
from engine.remote.access import Access, Upstream
from engine.remote.sse import Payloads

KEEP_ALIVE_S = 4.0
"""Below the 5 seconds after which vLLM's server closes a connection nobody uses."""
ASK_S = 10.0
"""Patience with questions that take no generation."""
DONE = b"[DONE]"
BUSY = (429, 503)
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Nothing of the request has left this machine."""


class Connection:
    """Made in the event loop that uses it."""

    def __init__(self, upstream: Upstream, access: Access) -> None:
        self.upstream = upstream
        self._access = access
        self._closed = False
        self.health_path = "/health"
        self._client = httpx.AsyncClient(
            base_url=upstream.url,
            headers={"authorization": f"Bearer {access.key}"} if access.key else {},
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
    ) -> httpx.Response:
        """One question, one answer of whatever status. Raises EngineDead without one."""
        method = "GET" if body is None else "POST"
        content = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(patience_s):
                return await self._client.request(
                    method, path, content=content, headers=_headers(body)
                )
        except TimeoutError:
            raise EngineDead(f"{self.upstream} gave no answer in {patience_s:g} s") from None
        except httpx.HTTPError as error:
            raise self._gone(error) from error

    async def whole(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """An answer that is not streamed. Raises EngineError."""
        async with self._sent(path, body, headers) as response:
            return orjson.loads(await response.aread())

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[Any, None]:
        """The data of a stream's events, parsed. Raises EngineError.

        Closing it closes the connection, by which the worker aborts the request.
        """
        payloads = Payloads()
        async with (
            self._sent(path, body, headers) as response,
            aclosing(self._patient(response)) as pieces,
        ):
            async for piece in pieces:
                for data in payloads.feed(piece):
                    if data != DONE:
                        yield await self._read(data)

    @asynccontextmanager
    async def _sent(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a request that was taken."""
        request = self._client.build_request(
            "POST", path, content=orjson.dumps(body), headers=_headers(body) | dict(headers)
        )
        response = None
        try:
            async with asyncio.timeout(self._access.first_token_s):
                response = await self._client.send(request, stream=True)
                if response.status_code != httpx.codes.OK:
                    raise await self._refused(response)
            yield response
        except TimeoutError:
            raise EngineDead(f"{self.upstream} stopped answering.") from None
        except (httpx.HTTPError, httpx.StreamError, orjson.JSONDecodeError, ValueError) as error:
            raise self._gone(error) from error
        finally:
            if response is not None:
                await response.aclose()

    async def _patient(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Each piece in its time; the first one takes longer."""
        pieces, patience_s = response.aiter_raw(), self._access.first_token_s
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            yield piece
            patience_s = self._access.idle_s

    async def _read(self, data: bytes) -> Any:
        payload = orjson.loads(data)
        if isinstance(payload, dict) and payload.get("error"):
            raise await self._failed(payload["error"])
        return payload

    async def _refused(self, response: httpx.Response) -> EngineError:
        """What a status that is not 200 means."""
        status, message = response.status_code, message_of(await response.aread())
        if status in BUSY and await self.healthy():
            wait = response.headers.get("retry-after", "")
            return EngineOverloaded(message, float(wait) if wait.isdecimal() else None)
        if status < 500 and status not in BUSY:
            return _rejected(status, message)
        return await self._broken(status, message)

    async def _failed(self, error: Any) -> EngineError:
        """What an error within a stream means."""
        status = error.get("code") if isinstance(error, dict) else None
        message = message_of_error(error)
        if isinstance(status, int) and 400 <= status < 500:
            return _rejected(status, message)
        return await self._broken(status, message)

    async def _broken(self, status: Any, message: str) -> EngineError:
        """This request alone, or the worker?"""
        if status not in (502, 504) and await self.healthy():
            return EngineFailed(f"The worker failed on this request: {message}")
        return EngineDead(f"{self.upstream} failed ({status}): {message}")

    async def healthy(self) -> bool:
        try:
            return (await self.ask(self.health_path)).status_code == httpx.codes.OK
        except EngineDead:
            return False

    def _gone(self, error: Exception) -> EngineDead:
        if self._closed:
            return EngineDead("The engine was closed.")
        told = str(error) or type(error).__name__
        kind = EngineUnreachable if isinstance(error, NOT_SENT) else EngineDead
        return kind(f"{self.upstream} cannot be reached: {told}")


def _headers(body: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if body is None else {"content-type": "application/json"}


def _rejected(status: int, message: str) -> EngineError:
    """401, 403 and 404 are about this gateway's settings, not about the client's request."""
    if status in (401, 403):
        return EngineFailed(f"The worker refuses this gateway (--upstream-key): {message}")
    if status == httpx.codes.NOT_FOUND:
        return EngineFailed(f"The worker does not serve what it is asked for: {message}")
    return RequestRejected(message)


def message_of(body: bytes) -> str:
    """Out of an answer that is not 200, as vLLM, OpenAI or FastAPI write it."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode("utf-8", "replace").strip() or "no reason given"
    if isinstance(said, dict):
        said = said.get("error") or said.get("detail") or said.get("message") or said
    return message_of_error(said)


def message_of_error(error: Any) -> str:
    found = error.get("message") if isinstance(error, dict) else error
    return str(found)[:2000] if found else "no reason given"
