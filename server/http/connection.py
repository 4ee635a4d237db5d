"""A client's connection, based on uvicorn's, with its configuration and a limit on request heads.

httptools buffers a header until it is complete, and uvicorn buffers all headers, both without a
limit. Two counts limit this here: bytes that the parser has returned since the message began, and
bytes it was fed since it last returned anything. This relies on attributes of uvicorn 0.54's
``HttpToolsProtocol``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import httptools
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from eaglegate.server.errors import (
    ConfigError,
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    RequestTimeout,
)
from eaglegate.server.http.connection_limits import ConnectionSlot, build_response
from eaglegate.server.http.middleware import FastWriteMiddleware

KEEP_ALIVE_S = 75
"""Seconds after which an idle connection is closed, longer than most proxies keep theirs."""
PIECE = 16 << 10
"""Bytes parsed at a time, so that bytes of the next request hardly count in ``_framing``."""
CHUNK_BYTES = 32
"""Bytes of a chunk's size and line ends that are free. Extensions count (RFC 9112, 7.1.1)."""
CLOSE_S = 5
"""Seconds after the last answer at which open connections are closed."""


class HeadRefused(Exception):
    """Stops the parser of a refused request."""


class HttpConnection(HttpToolsProtocol):
    """A client's connection. ``entry`` is its slot among all connections."""

    def __init__(self, entry: ConnectionSlot, config: Config, server_state: ServerState) -> None:
        super().__init__(config, server_state, app_state={})
        self._entry = entry
        self._limits = entry.limits
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = True
        """True while no request is in progress."""
        self._refused: GatewayError | None = None
        self.watched: dict[Any, Callable[[], None]] = {}
        """Callbacks for disconnects, by uvicorn's cycle of the request."""
        self._head_bytes = 0
        self._num_headers = 0
        self._unparsed = 0
        self._framing = 0
        """Bytes of the body's framing, above ``CHUNK_BYTES`` for each chunk."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._entry.mark_idle(transport.close)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._entry.release()
        super().connection_lost(exc)
        for cycle, leave in self.watched.items():
            cycle.disconnected = True
            leave()
        self.watched.clear()

    def data_received(self, data: bytes) -> None:
        """Parse data as uvicorn does, but decline offers to upgrade."""
        self._unset_keepalive_if_required()
        try:
            while data:
                piece, data = data[:PIECE], data[PIECE:]
                self._unparsed += len(piece)
                self._framing += len(piece)
                data = self._parse(piece) + data
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self.transport.is_closing():
            return
        if max(self._unparsed, self._framing) > self._limits.head_bytes:
            self.send_400_response("")
        elif self._waiting and self._timer is None:
            self._start_timer()

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser. Return the remaining bytes if it stopped at an offer of another
        protocol.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.parser.get_method() == b"CONNECT":
                return b""
            head = write_head_without_upgrade(self.parser, self.url, self.headers)
            self.parser = make_parser(self)
            self.parser.feed_data(head)
            return data[offer.args[0] :]
        return b""

    def _is_declined(self) -> bool:
        """Return True if this head will be parsed again without its offer to upgrade."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_message_begin(self) -> None:
        self._head_bytes = self._num_headers = self._unparsed = self._framing = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._unparsed = 0
        self._head_bytes += len(url)
        if self._head_bytes > self._limits.head_bytes:
            self._refuse_head(self._head_too_large())
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer, and pass it to uvicorn."""
        self._unparsed = 0
        self._num_headers += 1
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes or self._num_headers > self._limits.headers:
            self._refuse_head(self._head_too_large())
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._refuse_head(_transfer_encoding_error(value))
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_declined():
            return
        self._unparsed = self._framing = 0
        self._stop_timer()
        self._waiting = False
        self._entry.mark_busy()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._framing = max(0, self._framing - len(body))
        super().on_body(body)

    def on_chunk_header(self) -> None:
        self._framing = max(0, self._framing - CHUNK_BYTES)

    def on_message_complete(self) -> None:
        if self._framing > self._limits.head_bytes:
            self._refuse_head(self._head_too_large())
        if not self._is_declined():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._waiting = True
            self._entry.mark_idle(self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that uvicorn cannot parse as a request."""
        if max(self._unparsed, self._framing) > self._limits.head_bytes:
            self._refused = self._head_too_large()
        error = self._refused or InvalidRequest(msg, code="invalid_http")
        self._refuse(error)

    def _refuse_head(self, error: GatewayError) -> NoReturn:
        self._refused = error
        raise HeadRefused

    def _head_too_large(self) -> HeadersTooLarge:
        limits = self._limits
        return HeadersTooLarge(
            f"A request may have {limits.head_bytes} bytes of path and headers, as many of chunk "
            f"extensions, and {limits.headers} headers; this one has more."
        )

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._limits.head_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        self._refuse(
            RequestTimeout(f"The request did not arrive within {self._limits.head_s:g} s.")
        )

    def _refuse(self, error: GatewayError) -> None:
        """Answer and close. During another answer, only close."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        # A body that is not complete: the app still waits for it, unless it has answered.
        is_reading = cycle is not None and cycle.more_body and not cycle.response_started
        if cycle is None or cycle.response_complete or (is_reading and not self.pipeline):
            self.transport.write(build_response(error, self.server_state.default_headers))
        self.transport.close()


def make_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """Create a parser configured as uvicorn configures a connection's first parser."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


UPGRADE_HEADERS = frozenset((b"upgrade", b"http2-settings"))


def write_head_without_upgrade(
    parser: httptools.HttpRequestParser, url: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """Return the request head without its offer of another protocol.

    RFC 9110 lets a server ignore ``Upgrade``, but httptools would treat the body of such a request
    as data of the other protocol. Java's HttpClient offers h2c with the first request of a
    connection.
    """
    version = parser.get_http_version().encode()
    lines = [b"%b %b HTTP/%b" % (parser.get_method(), url, version)]
    lines += [b"%b: %b" % header for header in headers if header[0] not in UPGRADE_HEADERS]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _transfer_encoding_error(value: bytes) -> InvalidRequest:
    """Return the error for other encodings than chunked, with which the body's end cannot be
    found.
    """
    encoding = value.decode("latin-1")[:40]
    return InvalidRequest(
        f"The transfer encoding of a body must be 'chunked'; given '{encoding}'.",
        code="unsupported_transfer_encoding",
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings in uvicorn's terms. TLS is off without a certificate."""

    certfile: str | None = None
    keyfile: str | None = None
    keyfile_password: str | None = None
    ca_certs: str | None = None
    ciphers: str | None = None

    def check(self) -> None:
        """Raise ConfigError for unusable settings, before anything slow begins."""
        if self.certfile is None:
            if self.keyfile or self.ca_certs:
                raise ConfigError(
                    "--ssl-keyfile and --ssl-ca-certs need --ssl-certfile; without it the gateway "
                    "would serve plain HTTP"
                )
            return
        try:
            make_server_config(_empty_app, self).load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"TLS cannot be served with --ssl-certfile {self.certfile} and its key: {error}"
            ) from error


def make_server_config(app: ASGIApp, tls: TlsSettings, proxies: str = "") -> uvicorn.Config:
    return uvicorn.Config(
        FastWriteMiddleware(app),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
        ssl_certfile=tls.certfile,
        ssl_keyfile=tls.keyfile,
        ssl_keyfile_password=tls.keyfile_password,
        ssl_ca_certs=tls.ca_certs,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls.ca_certs else ssl.CERT_NONE,
        ssl_ciphers=tls.ciphers or "",
    )


async def _empty_app(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Do nothing: an application for checking a configuration."""
