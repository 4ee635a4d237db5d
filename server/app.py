"""The ASGI application: routes, middleware, and errors in each API's own format.

A request passes, from the socket inwards:

    HttpConnection       server/http/connection.py      limits of connections and request heads
    FastWriteMiddleware  server/http/middleware.py      frames go straight to the transport
    TelemetryMiddleware  observability/middleware.py    access log, metrics, traces
    RootPathMiddleware   server/http/middleware.py      with --root-path
    ApiCorsMiddleware    server/access/auth.py            with --allowed-origins
    HeadMiddleware       server/http/middleware.py      HEAD is GET without a body
    AuthMiddleware       server/access/auth.py            host, origin, key, memory: the Caller
    DirectRoutes         below                          APIs that generate, without FastAPI
    FastAPI              server/apis/operations/        everything else

``DirectRoutes`` calls ``respond`` in ``server/apis/shared/route.py``. FastAPI has the same routes,
but only for the OpenAPI document.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from eaglegate.server.access.auth import OPEN_PATHS, ApiCorsMiddleware, AuthMiddleware
from eaglegate.server.access.caller import find_caller
from eaglegate.server.apis.chat.request import ChatRequest
from eaglegate.server.apis.chat.response import ChatFold, ChatStream
from eaglegate.server.apis.chat.to_job import make_chat_job
from eaglegate.server.apis.completions.response import CompletionFold, CompletionStream
from eaglegate.server.apis.completions.to_job import CompletionRequest, make_completion_job
from eaglegate.server.apis.messages.request import CountTokensRequest, MessagesRequest
from eaglegate.server.apis.messages.response import MessageFold, MessageStream
from eaglegate.server.apis.messages.to_job import make_counted_conversation, make_messages_job
from eaglegate.server.apis.operations import admin, info
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.openapi import complete_openapi, describe_body
from eaglegate.server.apis.shared.request import parse, read_body
from eaglegate.server.apis.shared.route import (
    GenerationApi,
    count_prompt_tokens,
    render_prompt,
    respond,
)
from eaglegate.server.errors import (
    GatewayError,
    InvalidRequest,
    anthropic_body,
    error_body,
    openai_body,
)
from eaglegate.server.generation.job import Conversation
from eaglegate.server.http.middleware import HeadMiddleware, RootPathMiddleware
from eaglegate.server.http.routing import method_error, path_error

logger = logging.getLogger(__name__)

CHAT = GenerationApi(ChatRequest, make_chat_job, ChatStream, ChatFold, openai_body)
COMPLETIONS = GenerationApi(
    CompletionRequest, make_completion_job, CompletionStream, CompletionFold, openai_body
)
MESSAGES = GenerationApi(
    MessagesRequest, make_messages_job, MessageStream, MessageFold, anthropic_body
)
GENERATION_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"}
)
Endpoint = Callable[[Request], Awaitable[Response]]
Refuse = Callable[[Request, Exception], Awaitable[Response]]


def create_app(
    gateway: Gateway,
    more_routes: Iterable[BaseRoute] = (),
    stateful: Iterable[APIRouter] = (),
) -> FastAPI:
    """Create the application.

    ``more_routes`` come from other packages, such as /metrics. ``stateful`` are APIs that store
    answers or run work that outlives a request, such as ``apis/responses``.
    """
    prefix = gateway.settings.root_path.rstrip("/")
    servers = [{"url": prefix}] if prefix else None
    app = FastAPI(
        title="eaglegate",
        docs_url=None,
        redoc_url=None,
        servers=servers,
        redirect_slashes=False,  # a redirect would go to the client's Host header
    )
    for routes in (
        admin.router(gateway),
        _make_generation_routes(gateway),
        info.router(gateway),
        *stateful,
    ):
        app.router.routes.extend(routes.routes)  # include_router would make them all once more
    app.router.routes.extend(more_routes)
    complete_openapi(app, OPEN_PATHS)
    refuse = _add_error_handlers(app, gateway)
    _add_middleware(app, gateway, prefix, refuse)
    return app


class DirectRoutes:
    """Innermost ASGI middleware, which calls the generating endpoints without FastAPI.

    These endpoints read the request and build the response themselves, so FastAPI would add only
    overhead. Its routes exist for the OpenAPI document.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint], refuse: Refuse) -> None:
        """``endpoints`` are POST endpoints by path; ``refuse`` answers their GatewayErrors."""
        self._app = app
        self._endpoints = endpoints
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
        except GatewayError as error:
            response = await self._refuse(request, error)
        await response(scope, receive, send)


def _make_generation_routes(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest))
    async def chat(request: Request) -> Response:
        return await respond(request, gateway, lambda _: CHAT)

    @routes.post("/v1/completions", openapi_extra=describe_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await respond(request, gateway, lambda _: COMPLETIONS)

    @routes.post("/invocations", openapi_extra=describe_body(ChatRequest, CompletionRequest))
    async def invocations(request: Request) -> Response:
        """Generate on SageMaker's path, as vLLM does.

        A body with ``messages`` is a chat completion; a body with ``prompt`` is a completion.
        """
        return await respond(request, gateway, _select)

    _add_messages(routes, gateway)
    return routes


def _add_messages(routes: APIRouter, gateway: Gateway) -> None:
    @routes.post("/v1/messages", openapi_extra=describe_body(MessagesRequest))
    async def messages(request: Request) -> Response:
        return await respond(request, gateway, lambda _: MESSAGES)

    @routes.post("/v1/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
    async def count_tokens(request: Request) -> dict[str, int]:
        arrival = time.perf_counter()
        caller = find_caller(request.scope)
        body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
        pipeline = gateway.require()

        def read() -> Conversation:
            fields = parse(body, CountTokensRequest, caller.notices)
            return make_counted_conversation(fields, pipeline.served_model, caller)

        conversation = await caller.charge.parse(read)
        prompt = await count_prompt_tokens(
            pipeline,
            caller,
            "messages",
            arrival,
            lambda limits: render_prompt(conversation, pipeline, caller, limits),
        )
        return {"input_tokens": prompt.num_tokens}


def _select(body: Any) -> GenerationApi[Any]:
    fields = body if isinstance(body, dict) else {}
    if "messages" in fields:
        return CHAT
    if "prompt" in fields:
        return COMPLETIONS
    raise InvalidRequest(
        "The body needs 'messages', for a chat completion, or 'prompt', for a completion; it has "
        "neither."
    )


def _add_middleware(app: FastAPI, gateway: Gateway, prefix: str, refuse: Refuse) -> None:
    """Add the middleware. The one added last sees a request first."""
    endpoints = {
        route.path: route.endpoint
        for route in app.routes
        if isinstance(route, APIRoute) and route.path in GENERATION_PATHS
    }
    app.add_middleware(DirectRoutes, endpoints=endpoints, refuse=refuse)
    app.add_middleware(AuthMiddleware, gateway=gateway)
    app.add_middleware(HeadMiddleware)
    if gateway.cross_origin.origins:
        app.add_middleware(ApiCorsMiddleware, policy=gateway.cross_origin)
    if prefix:
        app.add_middleware(RootPathMiddleware, prefix=prefix)


def _add_error_handlers(app: FastAPI, gateway: Gateway) -> Refuse:
    """Add the error handlers, and return the handler of GatewayErrors."""

    async def handle_gateway_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, GatewayError)
        key = find_caller(request.scope).name
        gateway.observer.record_refusal(request.url.path, error.code or error.type, key)
        return JSONResponse(error_body(request.scope, error), error.status, error.headers())

    async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return await handle_gateway_error(request, _from_http(error, request))

    async def handle_unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("unhandled exception in a request", exc_info=error)
        failure = GatewayError("The gateway failed; this is not the client's fault.")
        return JSONResponse(error_body(request.scope, failure), 500)

    async def handle_bad_parameter(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await handle_gateway_error(request, _from_validation(error))

    app.add_exception_handler(GatewayError, handle_gateway_error)
    app.add_exception_handler(RequestValidationError, handle_bad_parameter)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(Exception, handle_unexpected)
    return handle_gateway_error


def _from_http(error: HTTPException, request: Request) -> GatewayError:
    if error.status_code == 404:
        return path_error(request.app.routes, request.scope)
    if error.status_code == 405:
        return method_error(request.app.routes, request.scope)
    return InvalidRequest(str(error.detail))


def _from_validation(error: RequestValidationError) -> GatewayError:
    """Return the error for an invalid path or query parameter.

    Bodies are validated in server/apis/shared/request.py.
    """
    first_error = error.errors()[0]
    name = str(first_error["loc"][-1])
    value = str(first_error.get("input"))[:100]
    return InvalidRequest(
        f"Invalid value for '{name}': {first_error['msg']}; given '{value}'.", param=name
    )
