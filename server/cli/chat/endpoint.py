"""A chat completions endpoint: its models, and the chunks of its answers."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from eaglegate.engine.remote.reading import SseDecoder, WorkerProtocolError

Row = dict[str, Any]
CONNECT_S, SILENCE_S = 10.0, 600.0
LONGEST_EVENT = 16 << 20
"""Maximum bytes of one event of a stream."""
MOST_ERROR_CHARACTERS = 1000
DONE = b"[DONE]"
OURS = "eaglegate"
"""Value of ``owned_by`` in the models of this gateway."""


class EndpointFailed(Exception):
    """The endpoint refused, closed the stream, or could not be reached. The message says why."""


class ChatEndpoint:
    """An OpenAI-compatible API at ``url``, given with or without ``/v1``.

    Every method raises EndpointFailed.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        base = (url if "://" in url else f"http://{url}").rstrip("/")
        base = base.removesuffix("/chat/completions")
        self.url = base if "/" in base.partition("://")[2] else f"{base}/v1"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        self._client = httpx.Client(headers=self._headers, timeout=timeout)

    def close(self) -> None:
        self._client.close()

    def list_models(self) -> list[Row]:
        """List the models, the default first. Adds ``/v1`` to the address if it is missing."""
        answer = self._get_models()
        if answer.status_code == httpx.codes.NOT_FOUND and not self.url.endswith("/v1"):
            self.url += "/v1"
            answer = self._get_models()
        if answer.is_error:
            raise EndpointFailed(_describe_error(answer))
        try:
            models = answer.json()["data"]
            return [dict(model) for model in models if isinstance(model["id"], str)]
        except (ValueError, KeyError, TypeError):
            raise EndpointFailed(f"{answer.url} lists no models: is this an API?") from None

    def _get_models(self) -> httpx.Response:
        with self._convert_errors():
            return self._client.get(f"{self.url}/models")

    def stream(self, body: Mapping[str, Any]) -> Generator[Row]:
        """Yield the chunks of an answer. Closing the iterator aborts the request.

        If a server does not know ``stream_options``, the request is repeated without it. A server
        that does not stream yields its whole answer as one chunk.
        """
        try:
            yield from self._stream(body)
        except _Refused as refused:
            if "stream_options" not in body or "stream_options" not in str(refused):
                raise EndpointFailed(str(refused)) from None
            plain = {name: value for name, value in body.items() if name != "stream_options"}
            yield from self._stream(plain)

    def _stream(self, body: Mapping[str, Any]) -> Generator[Row]:
        address = f"{self.url}/chat/completions"
        with self._convert_errors(), self._client.stream("POST", address, json=body) as answer:
            if answer.is_error:
                answer.read()
                raise _Refused(_describe_error(answer))
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                answer.read()
                yield _read_chunk(answer.content)
                return
            yield from _read_events(answer)

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, WorkerProtocolError) as error:
            reason = str(error) or type(error).__name__
            raise EndpointFailed(f"{self.url} does not answer: {reason}") from None


class _Refused(EndpointFailed):
    """The endpoint answered with an error instead of a stream."""


def _read_events(answer: httpx.Response) -> Iterator[Row]:
    decoder = SseDecoder(LONGEST_EVENT)
    for piece in answer.iter_bytes():
        for event in decoder.feed(piece):
            if event == DONE:
                return
            yield _read_chunk(event)


def _read_chunk(data: bytes) -> Row:
    """Parse a chunk. Raises EndpointFailed for an error in the stream and for anything but an
    object.
    """
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise EndpointFailed(f"the stream contains something other than chunks: {data[:200]!r}")
    if error := chunk.get("error"):
        raise EndpointFailed(f"the answer broke off: {_read_message(error)}")
    return chunk


def _describe_error(answer: httpx.Response) -> str:
    try:
        found = answer.json()
        message = _read_message(found.get("error") or found)
    except (ValueError, AttributeError):
        message = answer.text
    return f"HTTP {answer.status_code}: {message[:MOST_ERROR_CHARACTERS]}"


def _read_message(error: Any) -> str:
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)
