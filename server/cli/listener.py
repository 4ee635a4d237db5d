"""Binds the port before anything slow begins, and serves until a signal to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from eaglegate.server.access.admission import Admission
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.errors import ConfigError, Unavailable
from eaglegate.server.http.connection import HttpConnection, TlsSettings, make_server_config
from eaglegate.server.http.connection_limits import LIMITS, ConnectionLimiter, ConnectionSlot
from eaglegate.server.settings import Settings

log = logging.getLogger(__name__)

LAST_WORDS_S = 5.0
"""Seconds in which aborted streams may send their error frame, and paced streams their last
block.
"""
BACKLOG = 2048
PLAIN_HTTP = TlsSettings()


class Drain:
    """Graceful shutdown. ``cut`` aborts the remaining requests; ``end_grace`` ends the grace period
    early.
    """

    def __init__(
        self,
        gateway: Gateway,
        admission: Admission,
        grace_s: float,
        cut: Callable[[], Awaitable[None]],
    ) -> None:
        self._gateway = gateway
        self._admission = admission
        self._grace_s = grace_s
        self._abort = cut
        self._grace_over = asyncio.Event()

    def end_grace(self) -> None:
        """End the grace period now."""
        self._grace_over.set()

    async def run(self) -> int:
        """Drain the gateway, and return the number of lost requests."""
        self._gateway.stop()
        num_open = max(self._admission.num_in_flight, self._gateway.in_flight)
        if num_open:
            log.warning("draining: %d requests have up to %g s", num_open, self._grace_s)
        await _wait_for_first(self._grace_s, self._wait_until_answered(), self._grace_over.wait())
        num_lost = self._admission.num_in_flight
        self._gateway.timing.hurry.set()
        if num_lost:
            self._admission.reject_waiting(
                Unavailable("The gateway is shutting down; try again.", retry_after_s=5)
            )
            await self._abort()
        await _wait_for_first(LAST_WORDS_S, self._wait_until_answered())
        num_lost = num_lost or self._gateway.in_flight
        if num_lost:
            log.error("requests lost at shutdown: %d", num_lost)
        return num_lost

    async def _wait_until_answered(self) -> None:
        """Wait until every request has ended and its response has been sent."""
        await self._admission.wait_until_empty()
        await self._gateway.wait_until_sent()


async def _wait_for_first(timeout_s: float, *waits: Awaitable[object]) -> None:
    """Wait until one of ``waits`` has finished, for at most ``timeout_s``."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def bind(
    host: str, port: int, unread_s: float | None = None, *, shared: bool = False
) -> socket.socket:
    """Bind and listen. Raises ConfigError if the address is not available.

    The kernel disconnects a client that reads nothing for ``unread_s``. It divides the connections
    to a ``shared`` port among the processes of one user that listen there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as failure:
            listener = failure.enter_context(socket.socket(family, kind, protocol))
            _set_options(listener, unread_s)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            failure.pop_all()  # nothing failed, so the socket stays open
    except OSError as error:
        raise ConfigError(_explain_bind_error(host, port, error)) from None
    listener.set_inheritable(False)
    return listener


def _set_options(listener: socket.socket, unread_s: float | None) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if unread_s is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * unread_s))


def _explain_bind_error(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another process; choose one with --port, or start "
            "each with --reuse-port"
        )
    return f"cannot listen on --host {host} --port {port}: {error.strerror or error}"


def bind_listeners(settings: Settings) -> list[socket.socket]:
    """Bind the API port, then the operator port if there is one. Raises ConfigError."""
    listeners = [
        bind(settings.host, settings.port, settings.reader_timeout_s, shared=settings.reuse_port)
    ]
    if settings.admin_port is not None:
        listeners.append(bind(settings.admin_host, settings.admin_port))
    return listeners


def find_admin_port(listeners: Sequence[socket.socket]) -> int | None:
    return None if len(listeners) == 1 else int(listeners[1].getsockname()[1])


def format_url(listener: socket.socket, tls: TlsSettings | None = None) -> str:
    host, port = listener.getsockname()[:2]
    address = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    scheme = "https" if tls and tls.certfile else "http"
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


class GatewayServer(uvicorn.Server):
    """uvicorn server that accepts through a ConnectionLimiter, and leaves signals to ``serve``."""

    def __init__(self, config: uvicorn.Config, gate: ConnectionLimiter) -> None:
        super().__init__(config)
        self._gate = gate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        for listener in sockets or []:
            self._gate.open(listener, self._connection, self.config.ssl)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gate.close()
        await super().shutdown(sockets)

    def _connection(self, entry: ConnectionSlot) -> HttpConnection:
        return HttpConnection(entry, self.config, self.server_state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class SignalHandlers:
    """Actions for the process's signals."""

    drain: Drain
    reload: Callable[[], Awaitable[object]]


async def serve(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    starting: Coroutine[Any, Any, None],
    hooks: SignalHandlers,
    tls: TlsSettings = PLAIN_HTTP,
    gate: ConnectionLimiter | None = None,
) -> int:
    """Serve immediately while ``starting`` runs, and return the number of lost requests.

    Ends on SIGTERM or SIGINT after draining (a second signal ends the grace period), or with the
    error that ``starting`` raises. SIGHUP reloads.
    """
    gate = gate or ConnectionLimiter(LIMITS)
    server = GatewayServer(make_server_config(app, tls, gate.limits.proxies), gate)
    server_task = asyncio.create_task(server.serve(sockets=list(listeners)))
    start = asyncio.create_task(starting)
    stop = asyncio.Event()
    num_lost = 0
    with _handle_signals(stop, hooks):
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({server_task, start, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            start.cancel()
            num_lost = await hooks.drain.run()
        server.should_exit = True
        await server_task
        stopping.cancel()
    with suppress(asyncio.CancelledError):
        await start
    return num_lost


@contextmanager
def _handle_signals(stop: asyncio.Event, hooks: SignalHandlers) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    reloading: set[asyncio.Task[None]] = set()

    def on_stop() -> None:
        if stop.is_set():
            hooks.drain.end_grace()
        stop.set()

    def on_hup() -> None:
        task = asyncio.create_task(_reload(hooks.reload))
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    handlers = {signal.SIGTERM: on_stop, signal.SIGINT: on_stop, signal.SIGHUP: on_hup}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _reload(reload: Callable[[], Awaitable[object]]) -> None:
    try:
        log.warning("settings reloaded: %s", await reload())
    except ConfigError as error:
        log.error("settings were not reloaded: %s", error)
    except Exception:
        log.exception("settings were not reloaded; the current ones stay in force")
