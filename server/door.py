"""The door: every request passes here first. Closed unless a path is listed as open.

Paths are of three kinds. *Open* ones answer anybody: whether the process lives and is ready.
*Operator* ones show and change how the gateway runs. All others are the API. With API keys
configured the API needs one and operator paths need an admin's; with a separate admin port operator
paths exist there and nowhere else. Without any keys everything is open but ``/admin``, which then
answers only this machine.

What operators look at in a browser takes the key as the password of HTTP Basic, too: a browser has
no other way to ask for one. What changes anything does not, because browsers send such passwords
along with what other sites make them send.

What can be refused without reading the body is refused here: while the gateway drains, while the
queue is full.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.caller import Caller, caller
from server.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    NotFound,
    RequestTimeout,
    Unauthenticated,
    error_body,
)
from server.gateway import Gateway
from server.keys import Key, KeyRing
from server.response import send_json

OPEN = frozenset({"/health", "/ready"})
OPERATOR = ("/metrics", "/debug", "/admin")
BASIC = 'Basic realm="eaglegate: an admin API key is the password", charset="UTF-8"'
TIMEOUT_HEADER = "x-request-timeout"
MAX_TIMEOUT_S = 86400.0
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_operator(path: str) -> bool:
    return path == "/" or any(path == at or path.startswith(at + "/") for at in OPERATOR)


def is_page(path: str) -> bool:
    """Operator paths that only show."""
    return is_operator(path) and path != "/admin" and not path.startswith("/admin/")


class Door:
    """ASGI middleware; sets ``server.caller.caller`` for what is inside."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            who = self._enter(scope)
        except GatewayError as error:
            await self._refuse(error, scope["path"], send)
            return
        token = caller.set(who)
        try:
            await self._app(scope, _hurried(receive, self._gateway.body_timeout_s), send)
        finally:
            caller.reset(token)

    def _enter(self, scope: Scope) -> Caller:
        path, headers = scope["path"], Headers(scope=scope)
        self._check_port(scope, path)
        if path in OPEN:
            return Caller()
        if is_operator(path):
            return Caller(self._operator(scope, path, headers))
        key = self._gateway.keys.find(_given(headers)) if self._gateway.keys else None
        if scope["method"] == "POST" and path.startswith("/v1/"):
            self._gateway.require().admission.check()
        session = headers.get(self._gateway.session_header) or None
        return Caller(key, self._timeout(headers), session)

    def _check_port(self, scope: Scope, path: str) -> None:
        """Each port has its own paths, where there are two."""
        if self._gateway.admin_port is None or path in OPEN:
            return
        at_admin = (scope.get("server") or ("", 0))[1] == self._gateway.admin_port
        if at_admin != is_operator(path):
            raise NotFound(f"There is no {scope['method']} {path} on this port.")

    def _operator(self, scope: Scope, path: str, headers: Headers) -> Key | None:
        keys = self._gateway.keys
        if self._gateway.admin_port is not None:
            return None
        if keys:
            return _page_key(keys, path, headers) if is_page(path) else _admin(keys, path, headers)
        if path.startswith("/admin") and not _is_local(scope, headers):
            raise Forbidden(
                f"Without API keys {path} answers only clients on this machine; configure an "
                "admin's key (--admin-api-key or --api-key-file) or a port (--admin-port)."
            )
        return None

    def _timeout(self, headers: Headers) -> float | None:
        """The client's deadline or the gateway's, whichever is sooner."""
        most = self._gateway.request_timeout_s or None
        given = headers.get(TIMEOUT_HEADER)
        if given is None:
            return most
        try:
            seconds = float(given)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= MAX_TIMEOUT_S:
            raise InvalidRequest(
                f"{TIMEOUT_HEADER} must be a number of seconds above 0 and at most "
                f"{MAX_TIMEOUT_S:g}; given '{given[:40]}'.",
                param=TIMEOUT_HEADER,
            )
        return seconds if most is None else min(seconds, most)

    async def _refuse(self, error: GatewayError, path: str, send: Send) -> None:
        self._gateway.observer.refused(path, error.code or error.type)
        headers = tuple((k.encode(), v.encode()) for k, v in error.headers().items())
        await send_json(send, error.status, orjson.dumps(error_body(path, error)), headers)


def _admin(keys: KeyRing, path: str, headers: Headers) -> Key:
    key = keys.find(_given(headers))
    if not key.admin:
        raise Forbidden(f"{path} needs an admin's API key; '{key.name}' is not one.")
    return key


def _page_key(keys: KeyRing, path: str, headers: Headers) -> Key:
    """The same, from a browser too, which asks its user again as long as the answer is 401."""
    password = _password(headers)
    try:
        if password is None:
            return _admin(keys, path, headers)
        key = keys.find(password)
        if not key.admin:
            raise Unauthenticated(f"{path} needs an admin's API key; '{key.name}' is not one.")
        return key
    except Unauthenticated as error:
        error.challenge = BASIC
        raise


def _password(headers: Headers) -> str | None:
    """Of HTTP Basic; empty when it cannot be read, None without any."""
    scheme, _, coded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(coded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _given(headers: Headers) -> str | None:
    """The key of either scheme; two different ones are an error, not a choice."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = {bearer.strip()} if scheme.lower() == "bearer" else set()
    given |= {headers["x-api-key"].strip()} if "x-api-key" in headers else set()
    given.discard("")
    if len(given) > 1:
        raise Unauthenticated("'authorization' and 'x-api-key' hold different API keys.")
    return given.pop() if given else None


def _is_local(scope: Scope, headers: Headers) -> bool:
    """From this machine, and by a name of this machine: a page in a browser can fake neither."""
    client = (scope.get("client") or ("", 0))[0]
    try:
        near = ipaddress.ip_address(client).is_loopback
    except ValueError:
        near = False
    host = headers.get("host", "localhost")
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return near and name in LOCAL_NAMES and "x-forwarded-for" not in headers


def _hurried(receive: Receive, seconds: float) -> Receive:
    """The body must have come in after ``seconds``; what follows it may take its time."""
    until = asyncio.get_running_loop().time() + seconds
    whole = False

    async def wrapped() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message: dict[str, Any] = dict(await receive())
        except TimeoutError:
            raise RequestTimeout(f"The body did not come in within {seconds:g} s.") from None
        whole = not message.get("more_body", False)
        return message

    return wrapped
