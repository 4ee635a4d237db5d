"""ASGI middleware for request ids, the access log and traces; the outermost layer.

The access log is JSON, one object per line. It never holds prompts or answers.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglegate.observability.observation import NOT_SENT, RequestObservation, RequestRecord
from eaglegate.observability.sequence import MonotonicClock

QUIET = frozenset({"/", "/health", "/ready", "/metrics", "/debug/speculation"})
"""Paths that are polled, and logged only at level debug."""
ACCESS = "eaglegate.access"
MAX_PATH = 200
"""Most characters of a path in the access log."""


@dataclass(slots=True)
class HttpExchange:
    """One HTTP request and its response, updated while they pass."""

    request_id: str
    method: str
    path: str
    client: str
    started: float
    status: int = 0
    """Status of the response; 0 until it begins."""
    complete: bool = False
    """True if the last byte of the response was handed over."""
    client_gone: bool = False
    ended: float = 0.0
    refused: str = ""
    """The error code of a refused request."""
    observation: RequestObservation | None = None
    """Observation of the requested generation, once it was admitted."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """W3C trace context to pass on."""
    span: Any = None
    body: list[bytes] | None = None
    """Parts of the request's body received so far, if it may be captured."""
    captured: bool = True
    """False if the client opted out of captures."""


current: ContextVar[HttpExchange | None] = ContextVar("exchange", default=None)


def attach(observation: RequestObservation) -> None:
    """Attach the observation to the current exchange, if there is one."""
    exchange = current.get()
    if exchange is not None:
        exchange.observation = observation


def note_refusal(code: str) -> None:
    """Record on the current exchange why its request was refused."""
    exchange = current.get()
    if exchange is not None:
        exchange.refused = code


def take_body() -> tuple[str, bytes] | None:
    """Return the path and body of the current exchange, and drop its body.

    None if the client asked not to be captured.
    """
    exchange = current.get()
    if exchange is None:
        return NOT_SENT
    if not exchange.captured:
        return None
    body, exchange.body = exchange.body or (), None
    return exchange.path, b"".join(body)


def may_capture() -> bool:
    """Return False if the client of the current exchange opted out of captures."""
    exchange = current.get()
    return exchange is None or exchange.captured


RawHeaders = Iterable[tuple[bytes, bytes]]
W3C = frozenset({b"traceparent", b"tracestate"})
REQUEST_ID = b"x-request-id"
ANTHROPIC_ID = b"request-id"
"""The header in which Anthropic's clients read the request id."""
CAPTURE = b"x-eaglegate-capture", b"off"
"""Header of requests that must not be captured, such as those of a replay."""
ACCEPTABLE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Tracing:
    """Base of what reports exchanges as spans. By itself it reports none, and passes the client's
    trace context on to the engine."""

    def begin(self, exchange: HttpExchange, headers: RawHeaders) -> None:
        """Begin a span. ``headers`` are the request's, with names in lower case."""
        exchange.trace_headers = {
            name.decode(): value.decode("latin-1") for name, value in headers if name in W3C
        }

    def end(self, exchange: HttpExchange) -> None:
        """End the exchange's span."""

    async def aclose(self) -> None:
        """Send the remaining spans."""


class TelemetryMiddleware:
    """Middleware that calls ``log`` with every finished exchange.

    The request id is the client's ``x-request-id`` if it is valid (letters, digits, ``._:-``, at
    most 128), else a new one. It is returned in ``x-request-id`` and ``request-id``, and the app
    finds it in ``request.state.request_id``. Answers that are complete before their first byte
    carry ``Server-Timing``.
    """

    def __init__(
        self,
        app: ASGIApp,
        log: Callable[[HttpExchange], None],
        tracing: Tracing | None = None,
        clock: MonotonicClock = time.perf_counter,
        keep_bodies: bool = False,
    ) -> None:
        """Wrap ``app``. ``keep_bodies`` keeps request bodies until generation begins, for a
        capture."""
        self._app = app
        self._keep_bodies = keep_bodies
        self._log = log
        self._tracing = tracing or Tracing()
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = self._exchange(scope)
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        self._tracing.begin(exchange, scope["headers"])
        token = current.set(exchange)
        try:
            await self._app(scope, _wrap_receive(exchange, receive), _wrap_send(exchange, send))
        finally:
            current.reset(token)
            exchange.ended = self._clock()
            self._tracing.end(exchange)
            self._log(exchange)

    def _exchange(self, scope: Scope) -> HttpExchange:
        client = scope.get("client") or ("", 0)
        captured = CAPTURE not in scope["headers"]
        return HttpExchange(
            request_id=_read_request_id(scope["headers"]) or os.urandom(16).hex(),
            method=scope["method"],
            path=scope["path"],
            client=client[0],
            started=self._clock(),
            body=[] if self._keep_bodies and captured and scope["method"] == "POST" else None,
            captured=captured,
        )


def _read_request_id(headers: RawHeaders) -> str:
    """Return the client's own request id; empty if it is missing or invalid."""
    request_id = next((value for name, value in headers if name == REQUEST_ID), b"")
    return request_id.decode() if ACCEPTABLE_ID.fullmatch(request_id) else ""


def _wrap_receive(exchange: HttpExchange, receive: Receive) -> Receive:
    async def wrapped() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect" and not exchange.complete:
            exchange.client_gone = True
        elif exchange.body is not None and message["type"] == "http.request":
            exchange.body.append(message.get("body", b""))
        return message

    return wrapped


def _wrap_send(exchange: HttpExchange, send: Send) -> Send:
    def wrapped(message: Message) -> Awaitable[None]:
        if message.get("more_body"):
            return send(message)
        if message["type"] == "http.response.body":
            exchange.complete = True
        elif message["type"] == "http.response.start":
            exchange.status = message["status"]
            message = {
                **message,
                "headers": [*message.get("headers", ()), *_make_headers(exchange)],
            }
        return send(message)

    return wrapped


def _make_headers(exchange: HttpExchange) -> list[tuple[bytes, bytes]]:
    request_id = exchange.request_id.encode()
    out = [(REQUEST_ID, request_id), (ANTHROPIC_ID, request_id)]
    record = exchange.observation.record if exchange.observation else None
    if record is not None:
        out.append((b"server-timing", format_server_timing(record).encode()))
    return out


def format_server_timing(record: RequestRecord) -> str:
    """Return ``queue;dur=0.1, ttft;dur=31.0, total;dur=90.2, speculation;desc="acceptance
    2.40"``."""
    parts = [f"queue;dur={1000 * record.queued:.1f}"]
    if record.ttft is not None:
        parts.append(f"ttft;dur={1000 * record.ttft:.1f}")
    if len(record.choices) == 1 and record.choices[0].tpot is not None:
        parts.append(f"tpot;dur={1000 * record.choices[0].tpot:.2f}")
    parts.append(f"total;dur={1000 * record.duration:.1f}")
    length = record.totals.acceptance_length
    if length is not None:
        parts.append(f'speculation;desc="acceptance {length:.2f}"')
    return ", ".join(parts)


class AccessLog:
    """Access log with one line per exchange; call it with each.

    It does not use ``logging``, which would cost more than all other observation of a request.
    """

    def __init__(
        self, level: str = "info", stream: TextIO | None = None, kind: str = "json"
    ) -> None:
        """Open the log. ``kind`` is "json", or "text" for people."""
        self._write = write_text if kind == "text" else write_json
        self._quiet = level != "debug"
        self._off = level in ("warning", "error")
        self._stream = stream or sys.stderr

    def __call__(self, exchange: HttpExchange) -> None:
        if self._off or (self._quiet and exchange.path in QUIET):
            return
        self._stream.write(self._write(exchange) + "\n")
        self._stream.flush()


def write_json(exchange: HttpExchange) -> str:
    """Return all facts of an exchange as one line of JSON."""
    line = {
        "time": datetime.now(UTC),
        "level": "info",
        "logger": ACCESS,
        "message": "request",
        **make_fields(exchange),
    }
    return orjson.dumps(line).decode()


def write_text(exchange: HttpExchange) -> str:
    """Return ``2026-11-20 10:00:00,123 INFO eaglegate.access: POST /v1/chat/completions 200,
    ...``."""
    now = datetime.now()
    parts = [
        f"{exchange.method} {_escape(exchange.path[:MAX_PATH])} {exchange.status}",
        f"{1000 * (exchange.ended - exchange.started):.1f} ms",
    ]
    if exchange.refused:
        parts.append(f"refused: {exchange.refused}")
    if exchange.client_gone:
        parts.append("the client left")
    if exchange.observation is not None and exchange.observation.record is not None:
        parts += _describe_generation(exchange.observation.record)
    message = ", ".join([*parts, f"request {exchange.request_id}"])
    return f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03} INFO {ACCESS}: {message}"


def _escape(path: str) -> str:
    """Return a path as one line, whatever characters the client put into it."""
    return path.encode("unicode_escape").decode()


def _describe_generation(record: RequestRecord) -> list[str]:
    length = record.totals.acceptance_length
    return [
        record.ending.value,
        f"{record.facts.prompt_tokens} + {record.tokens} tokens",
        *([] if length is None else [f"acceptance {length:.2f}"]),
        record.facts.id,
    ]


def make_fields(exchange: HttpExchange) -> dict[str, Any]:
    """Make the fields of an exchange's line in the access log."""
    out: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.path[:MAX_PATH],
        "client": exchange.client,
        "status": exchange.status,
        "duration_ms": to_ms(exchange.ended - exchange.started),
        "client_gone": exchange.client_gone,
        **({"refused": exchange.refused} if exchange.refused else {}),
    }
    record = exchange.observation.record if exchange.observation else None
    return out if record is None else out | make_generation_fields(record)


def make_generation_fields(record: RequestRecord) -> dict[str, Any]:
    """Make a generation's fields for the access log; null for numbers that do not exist."""
    facts, totals, labels = record.facts, record.totals, record.slices.labels
    tpots = [choice.tpot for choice in record.choices if choice.tpot is not None]
    return {
        "id": facts.id,
        "api": facts.api,
        "model": labels.model,
        "lane": labels.lane,
        "workload": labels.workload,
        "context": record.slices.context,
        "template": facts.template,
        "stream": facts.stream,
        "choices": len(record.choices),
        "outcome": record.ending.value,
        "finish": [choice.finish for choice in record.choices],
        "prompt_tokens": facts.prompt_tokens,
        "completion_tokens": record.tokens,
        "queue_ms": to_ms(record.queued),
        "ttft_ms": to_ms(record.ttft),
        "tpot_ms": to_ms(sum(tpots) / len(tpots) if tpots else None),
        "acceptance_length": _round(totals.acceptance_length),
        "drafted_tokens": totals.proposed,
        "accepted_tokens": totals.accepted,
        "fallback_ratio": _round(totals.fallback_ratio),
        "drafts": list(record.drafts),
        "arm": facts.arm,
        "tool_calls": [outcome.value for choice in record.choices for outcome in choice.tools],
    }


def to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
