"""Authentication: which callers may access which paths. Paths are closed unless listed as open.

There are three kinds of paths. *Open* paths answer anybody: liveness, readiness, and the files of
the playground, which contain no data of the gateway. *Operator* paths show and change how the
gateway runs. All other paths are the API. If API keys are configured, the API needs a key, and
operator paths need an admin's key. With a separate admin port, operator paths exist only there.
Without any keys everything is open except ``/admin``, which then needs that port: behind a proxy on
this machine, remote clients look like local ones.

If no key is required, web pages of other origins are kept out (server/access/cross_origin.py).

Operator paths that are viewed in a browser also accept the key as the password of HTTP Basic, since
a browser has no other way to ask for one. Paths that change something do not, because browsers add
such passwords to requests that other sites trigger.

Requests that can be refused without reading the body are refused here: while the gateway drains,
and while the queue has no room for the key.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Protocol

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eaglegate.engine.events import Observer
from eaglegate.server.access.admission import Admission
from eaglegate.server.access.budget import RequestBudget, RequestCharge
from eaglegate.server.access.caller import ApiKey, Caller
from eaglegate.server.access.cross_origin import (
    SAFE_METHODS,
    CrossOriginPolicy,
    RequestHeaders,
    check_content_type,
    read_host,
)
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.access.memory import MemoryMonitor
from eaglegate.server.access.notices import Notices
from eaglegate.server.access.rate_limits import add_rate_limits
from eaglegate.server.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    NotFound,
    RequestTimeout,
    Unauthenticated,
    UnsupportedMediaType,
    error_body,
)
from eaglegate.server.http.connection_limits import group_address
from eaglegate.server.http.middleware import find_writer
from eaglegate.server.http.response import send_json
from eaglegate.server.http.routing import list_methods

PROBE_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Paths that accept any Host header and need no key."""
OPEN_PATHS = PROBE_PATHS | {"/playground"}
"""Paths that need no key."""
OPEN_FOLDER = "/page/"
"""Styles and scripts of the page, which are the same for everybody."""
OPERATOR_PATHS = ("/metrics", "/debug", "/admin")
OPERATOR_FOLDERS = tuple(f"{path}/" for path in OPERATOR_PATHS)
STORED = ("/v1/responses/", "/v1/conversations/")
"""Paths of stored objects, which may be as large as a request body and have slow readers."""
BASIC = 'Basic realm="eaglegate: an admin API key is the password", charset="UTF-8"'
TIMEOUT_HEADER = "x-request-timeout"
MAX_TIMEOUT_S = 86400.0
WORKLOAD_HEADER = "x-eaglegate-workload"
"""Header that names the request's workload. Only configured names count."""
REFUSE = "refuse"
"""Value of ``--unknown-fields`` that refuses them."""


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def is_operator(path: str) -> bool:
    return path == "/" or path in OPERATOR_PATHS or path.startswith(OPERATOR_FOLDERS)


def is_page(path: str) -> bool:
    """Return True for operator paths that only show something."""
    return is_operator(path) and path != "/admin" and not path.startswith("/admin/")


class AccessSettings(Protocol):
    """The settings that authentication reads."""

    @property
    def session_header(self) -> str: ...

    @property
    def request_timeout_s(self) -> float: ...

    @property
    def body_timeout_s(self) -> float: ...

    @property
    def unknown_fields(self) -> str: ...


class AdmittingPipeline(Protocol):
    """The pipeline of a ready gateway, as far as authentication sees it."""

    @property
    def admission(self) -> Admission: ...


class GuardedGateway(Protocol):
    """The state that authentication reads for each request, since a reload replaces parts of it."""

    keys: KeyRing
    admin_port: int | None
    cross_origin: CrossOriginPolicy
    budget: RequestBudget
    observer: Observer
    memory: MemoryMonitor
    in_flight: int
    """Number of in-flight requests that may use memory. The middleware counts them."""

    @property
    def settings(self) -> AccessSettings: ...

    @property
    def pipeline(self) -> AdmittingPipeline | None: ...

    def require(self) -> AdmittingPipeline:
        """Return the pipeline. Raises Unavailable if the engine is not ready."""
        ...


class AuthMiddleware:
    """ASGI middleware that authorizes requests and adds their ``Caller`` to the scope's state."""

    def __init__(self, app: ASGIApp, gateway: GuardedGateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        uses_memory = _uses_memory(scope)
        try:
            caller = self._authorize(scope, uses_memory)
        except GatewayError as error:
            await self._refuse(error, scope, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        self._gateway.in_flight += uses_memory
        if not find_writer(scope).has_request():
            receive = _limit_duration(receive, self._gateway.settings.body_timeout_s)
        try:
            send = self._show_limits(send, caller)
            send = caller.notices.show(send, scope["path"], self._gateway.observer)
            await self._app(scope, receive, send)
        finally:
            self._gateway.in_flight -= uses_memory
            caller.charge.close()

    def _show_limits(self, send: Send, caller: Caller) -> Send:
        key, pipeline = caller.key, self._gateway.pipeline
        if key is None or pipeline is None or (key.quota is None and key.concurrency is None):
            return send
        requester = caller.to_requester()
        return add_rate_limits(send, key, lambda: pipeline.admission.count_places(requester))

    def _open_charge(self, key: ApiKey | None) -> RequestCharge:
        budget = self._gateway.budget
        return budget.open() if key is None else budget.open(key.name, key.quota)

    def _make_notices(self) -> Notices:
        return Notices(refuses=self._gateway.settings.unknown_fields == REFUSE)

    def _authorize(self, scope: Scope, uses_memory: bool) -> Caller:
        path, headers = scope["path"], RequestHeaders(scope["headers"])
        operator = is_operator(path)
        host = read_host(headers, scope["http_version"])
        self._check_port(scope, path)
        if path in PROBE_PATHS:
            return Caller()
        self._check_origin(scope["method"], headers, host, operator)
        try:
            check_content_type(scope["method"], headers)
        except UnsupportedMediaType:
            if scope["method"] in list_methods(scope["app"].routes, scope):
                raise
        if is_open(path):
            return Caller()
        if operator:
            key = self._authorize_operator(path, headers)
            return Caller(key, charge=self._open_charge(key), notices=self._make_notices())
        key = self._gateway.keys.find(_read_key(headers)) if self._gateway.keys else None
        if uses_memory:
            self._gateway.memory.check(self._gateway.in_flight)
        timeout_s = self._read_timeout(headers)
        chose_timeout = timeout_s != (self._gateway.settings.request_timeout_s or None)
        caller = Caller(
            key,
            timeout_s,
            session=headers.get(self._gateway.settings.session_header.lower()) or None,
            # A client can own the whole /64 network of its IPv6 address.
            client=group_address(str((scope.get("client") or ("", 0))[0])),
            chose_timeout=chose_timeout,
            workload=headers.get(WORKLOAD_HEADER),
            charge=self._open_charge(key),
            notices=self._make_notices(),
        )
        if scope["method"] == "POST" and (path.startswith("/v1/") or path == "/invocations"):
            admission = self._gateway.require().admission
            if admission.queued >= admission.bounds.queued:
                admission.check(caller.to_requester())
        return caller

    def _check_port(self, scope: Scope, path: str) -> None:
        """Raise NotFound for a path that belongs to the other port, if there is an admin port."""
        if self._gateway.admin_port is None or is_open(path):
            return
        at_admin = (scope.get("server") or ("", 0))[1] == self._gateway.admin_port
        if at_admin != is_operator(path):
            raise NotFound(f"There is no {scope['method']} {path} on this port.")

    def _check_origin(
        self, method: str, headers: RequestHeaders, host: str, operator: bool
    ) -> None:
        """Raise Forbidden for requests that a foreign page could have sent."""
        gateway = self._gateway
        if not gateway.keys or (operator and gateway.admin_port is not None):
            policy = gateway.cross_origin
            if host:
                policy.check_host(host)
            policy.check_origin(method, headers, () if operator else policy.origins)

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
        """Return the client's timeout or the gateway's, whichever is shorter. Raises
        InvalidRequest.
        """
        limit = self._gateway.settings.request_timeout_s or None
        header = headers.get(TIMEOUT_HEADER)
        if header is None:
            return limit
        try:
            seconds = float(header)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= MAX_TIMEOUT_S:
            raise InvalidRequest(
                f"{TIMEOUT_HEADER} must be a number of seconds above 0 and at most "
                f"{MAX_TIMEOUT_S:g}; given '{header[:40]}'.",
                param=TIMEOUT_HEADER,
            )
        return seconds if limit is None else min(seconds, limit)

    async def _refuse(self, error: GatewayError, scope: Scope, send: Send) -> None:
        path, key = scope["path"], self._name_key(scope)
        self._gateway.observer.record_refusal(path, error.code or error.type, key)
        headers = tuple((k.encode(), v.encode()) for k, v in error.headers().items())
        await send_json(send, error.status, orjson.dumps(error_body(scope, error)), headers)

    def _name_key(self, scope: Scope) -> str | None:
        """Return the name of a refused request's key, if it has a valid one."""
        try:
            return self._gateway.keys.find(_read_key(RequestHeaders(scope["headers"]))).name
        except Unauthenticated:
            return None


def _uses_memory(scope: Scope) -> bool:
    """Return True if a request may use memory. Cancelling, deleting and viewing something small do
    not.
    """
    path = scope["path"]
    if path.startswith(STORED) and scope["method"] != "DELETE":
        return not path.endswith("/cancel")
    stops = path.endswith("/cancel") or scope["method"] == "DELETE"
    return scope["method"] not in SAFE_METHODS and not stops and not is_operator(path)


class ApiCorsMiddleware:
    """ASGI middleware that adds CORS to the API, outside authentication because preflights carry no
    key.

    Operator paths get no CORS headers.
    """

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
    """Return the admin key, also from a browser, which asks its user again after each 401."""
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
    """Return the password of HTTP Basic: empty if it cannot be decoded, None if there is none."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _read_key(headers: RequestHeaders) -> str | None:
    """Return the key of either scheme. Raises Unauthenticated if two different keys are given."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = {bearer.strip()} if scheme.lower() == "bearer" else set()
    keys |= {headers["x-api-key"].strip()} if "x-api-key" in headers else set()
    keys.discard("")
    if len(keys) > 1:
        raise Unauthenticated("'authorization' and 'x-api-key' hold different API keys.")
    return keys.pop() if keys else None


def _limit_duration(receive: Receive, seconds: float) -> Receive:
    """Return a ``receive`` that raises RequestTimeout unless the body arrives within ``seconds``.

    Later messages have no limit.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    is_complete = False

    async def receive_in_time() -> Message:
        nonlocal is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message: dict[str, Any] = dict(await receive())
        except TimeoutError:
            raise RequestTimeout(f"The body did not arrive within {seconds:g} s.") from None
        is_complete = not message.get("more_body", False)
        return message

    return receive_in_time
