"""Authentication: who may ask for which path. A path is closed unless it is listed as open.

Paths are of three kinds. *Open* ones answer anybody: whether the process lives and is ready, and
the files of the playground, which hold nothing of the gateway's.
*Operator* ones show and change how the gateway runs. All others are the API. With API keys
configured the API needs one and operator paths need an admin's; with a separate admin port operator
paths exist there and nowhere else. Without any keys everything is open but ``/admin``, which then
needs that port: a proxy on this machine makes its clients look like this machine's own.

Where no key is asked for, web pages of other origins are kept out (server/http/cross_origin.py).

What operators look at in a browser takes the key as the password of HTTP Basic, too: a browser has
no other way to ask for one. What changes anything does not, because browsers send such passwords
along with what other sites make them send.

What can be refused without reading the body is refused here: while the gateway drains, while the
queue has no room for this key.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglegate.server.access.budget import RequestCharge, current_charge
from eaglegate.server.access.caller import ApiKey, Caller, current_caller
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    NotFound,
    RequestTimeout,
    Unauthenticated,
    error_body,
)
from eaglegate.server.http.connection_limits import group_address
from eaglegate.server.http.cross_origin import (
    SAFE_METHODS,
    CrossOriginPolicy,
    RequestHeaders,
    check_content_type,
    read_host,
)
from eaglegate.server.http.middleware import find_writer
from eaglegate.server.http.rate_limits import add_rate_limits
from eaglegate.server.http.response import send_json

PROBE_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Paths that answer every host and need no key."""
OPEN_PATHS = PROBE_PATHS | {"/playground"}
"""Paths that need no key."""
OPEN_FOLDER = "/page/"
"""Styles and scripts of the page, which are the same for everybody."""
OPERATOR_PATHS = ("/metrics", "/debug", "/admin")
OPERATOR_FOLDERS = tuple(f"{path}/" for path in OPERATOR_PATHS)
STORED = ("/v1/responses/", "/v1/conversations/")
"""Paths of stored objects, which may be as large as a request and have slow readers."""
BASIC = 'Basic realm="eaglegate: an admin API key is the password", charset="UTF-8"'
TIMEOUT_HEADER = "x-request-timeout"
MAX_TIMEOUT_S = 86400.0


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def is_operator(path: str) -> bool:
    return path == "/" or path in OPERATOR_PATHS or path.startswith(OPERATOR_FOLDERS)


def is_page(path: str) -> bool:
    """Operator paths that only show."""
    return is_operator(path) and path != "/admin" and not path.startswith("/admin/")


class AuthMiddleware:
    """ASGI middleware; sets ``current_caller`` and ``current_charge`` for what is inside."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        works = _uses_memory(scope)
        try:
            caller = self._authorize(scope, works)
        except GatewayError as error:
            await self._refuse(error, scope["path"], send)
            return
        caller_token = current_caller.set(caller)
        charge = self._open_charge(caller)
        charge_token = current_charge.set(charge)
        self._gateway.in_flight += works
        if not find_writer(scope).has_request():
            receive = _limit_duration(receive, self._gateway.settings.body_timeout_s)
        try:
            await self._app(scope, receive, self._show_limits(send, caller))
        finally:
            self._gateway.in_flight -= works
            charge.close()
            current_charge.reset(charge_token)
            current_caller.reset(caller_token)

    def _show_limits(self, send: Send, caller: Caller) -> Send:
        key, pipeline = caller.key, self._gateway.pipeline
        if key is None or pipeline is None or (key.quota is None and key.concurrency is None):
            return send
        requester = caller.to_requester()
        return add_rate_limits(send, key, lambda: pipeline.admission.count_places(requester))

    def _open_charge(self, caller: Caller) -> RequestCharge:
        budget, key = self._gateway.budget, caller.key
        return budget.open() if key is None else budget.open(key.name, key.quota)

    def _authorize(self, scope: Scope, works: bool) -> Caller:
        path, headers = scope["path"], RequestHeaders(scope["headers"])
        operator = is_operator(path)
        host = read_host(headers, scope["http_version"])
        self._check_port(scope, path)
        if path in PROBE_PATHS:
            return Caller()
        self._check_origin(scope["method"], headers, host, operator)
        if is_open(path):
            return Caller()
        if operator:
            return Caller(self._authorize_operator(path, headers))
        key = self._gateway.keys.find(_read_key(headers)) if self._gateway.keys else None
        if works:
            self._gateway.memory.check(self._gateway.in_flight)
        session = headers.get(self._gateway.settings.session_header.lower()) or None
        caller = Caller(key, self._read_timeout(headers), session, _client_network(scope))
        if scope["method"] == "POST" and (path.startswith("/v1/") or path == "/invocations"):
            admission = self._gateway.require().admission
            if admission.queued >= admission.bounds.queued:
                admission.check(caller.to_requester())
        return caller

    def _check_port(self, scope: Scope, path: str) -> None:
        """Each port has its own paths, where there are two."""
        if self._gateway.admin_port is None or is_open(path):
            return
        at_admin = (scope.get("server") or ("", 0))[1] == self._gateway.admin_port
        if at_admin != is_operator(path):
            raise NotFound(f"There is no {scope['method']} {path} on this port.")

    def _check_origin(
        self, method: str, headers: RequestHeaders, host: str, operator: bool
    ) -> None:
        """Raises Forbidden or UnsupportedMediaType for what a foreign page could have sent."""
        gateway = self._gateway
        if not gateway.keys or (operator and gateway.admin_port is not None):
            policy = gateway.cross_origin
            if host:
                policy.check_host(host)
            policy.check_origin(method, headers, () if operator else policy.origins)
        check_content_type(method, headers)

    def _authorize_operator(self, path: str, headers: RequestHeaders) -> ApiKey | None:
        keys = self._gateway.keys
        if self._gateway.admin_port is not None:
            return None
        if keys:
            return (
                _find_page_key(keys, path, headers)
                if is_page(path)
                else _find_admin_key(keys, path, headers)
            )
        if not is_page(path):
            raise Forbidden(
                f"{path} needs a port of its own (--admin-port) or an admin's API key "
                "(--admin-api-key or --api-key-file); this gateway has neither."
            )
        return None

    def _read_timeout(self, headers: RequestHeaders) -> float | None:
        """The client's deadline or the gateway's, whichever is sooner."""
        most = self._gateway.settings.request_timeout_s or None
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
        self._gateway.observer.record_refusal(path, error.code or error.type)
        headers = tuple((k.encode(), v.encode()) for k, v in error.headers().items())
        await send_json(send, error.status, orjson.dumps(error_body(path, error)), headers)


def _uses_memory(scope: Scope) -> bool:
    """Whether a request may take memory: one that stops or shows something small does not."""
    path = scope["path"]
    if path.startswith(STORED) and scope["method"] != "DELETE":
        return not path.endswith("/cancel")
    stops = path.endswith("/cancel") or scope["method"] == "DELETE"
    return scope["method"] not in SAFE_METHODS and not stops and not is_operator(path)


class ApiCorsMiddleware:
    """ASGI middleware, outside the door: preflights carry no key. Operator paths get none of it."""

    def __init__(self, app: ASGIApp, policy: CrossOriginPolicy) -> None:
        self._app = app
        self._api = policy.wrap(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operator = scope["type"] == "http" and is_operator(scope["path"])
        await (self._app if operator else self._api)(scope, receive, send)


def _find_admin_key(keys: KeyRing, path: str, headers: RequestHeaders) -> ApiKey:
    key = keys.find(_read_key(headers))
    if not key.admin:
        raise Forbidden(f"{path} needs an admin's API key; '{key.name}' is not one.")
    return key


def _find_page_key(keys: KeyRing, path: str, headers: RequestHeaders) -> ApiKey:
    """The same, from a browser too, which asks its user again as long as the answer is 401."""
    password = _read_basic_password(headers)
    try:
        if password is None:
            return _find_admin_key(keys, path, headers)
        key = keys.find(password)
        if not key.admin:
            raise Unauthenticated(f"{path} needs an admin's API key; '{key.name}' is not one.")
        return key
    except Unauthenticated as error:
        error.challenge = BASIC
        raise


def _read_basic_password(headers: RequestHeaders) -> str | None:
    """Read the password of HTTP Basic: empty when it cannot be decoded, None where there is
    none.
    """
    scheme, _, coded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(coded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _read_key(headers: RequestHeaders) -> str | None:
    """The key of either scheme; two different ones are an error, not a choice."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = {bearer.strip()} if scheme.lower() == "bearer" else set()
    given |= {headers["x-api-key"].strip()} if "x-api-key" in headers else set()
    given.discard("")
    if len(given) > 1:
        raise Unauthenticated("'authorization' and 'x-api-key' hold different API keys.")
    return given.pop() if given else None


def _client_network(scope: Scope) -> str:
    """The peer's address; of IPv6 its first 64 bits, which one client can have to itself."""
    return group_address(str((scope.get("client") or ("", 0))[0]))


def _limit_duration(receive: Receive, seconds: float) -> Receive:
    """The body must have come in after ``seconds``; what follows it may take its time."""
    until = asyncio.get_running_loop().time() + seconds
    whole = False

    async def receive_in_time() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout_at(until):
                message: dict[str, Any] = dict(await receive())
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {seconds:g} s.") from None
        whole = not message.get("more_body", False)
        return message

    return receive_in_time
