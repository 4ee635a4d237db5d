"""The ASGI application: routes, and every error in the API's own shape."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from server.apis import generation
from server.apis.operations import admin, status, tokens
from server.apis.responses import route as responses
from server.apis.responses.background import BackgroundRuns
from server.apis.shared.gateway import Gateway
from server.apis.shared.notices import NoticeHeader
from server.apis.shared.route import complete_openapi
from server.errors import (
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    error_body,
)
from server.http.auth import ApiCorsMiddleware, AuthMiddleware
from server.http.middleware import HeadMiddleware, RootPathMiddleware

logger = logging.getLogger(__name__)


def create_app(
    gateway: Gateway,
    more_routes: Iterable[BaseRoute] = (),
    background_runs: BackgroundRuns | None = None,
) -> FastAPI:
    """``more_routes`` are those of other packages, such as /metrics."""
    runs = BackgroundRuns() if background_runs is None else background_runs
    prefix = gateway.root_path.rstrip("/")
    servers = [{"url": prefix}] if prefix else None
    app = FastAPI(title="eaglegate", docs_url=None, redoc_url=None, servers=servers)
    for room in (admin, generation, status, tokens):
        app.include_router(room.router(gateway))
    app.include_router(responses.router(gateway, runs))
    app.router.routes.extend(more_routes)
    complete_openapi(app)
    _add_middleware(app, gateway, prefix)
    _add_error_handlers(app, gateway)
    return app


def _add_middleware(app: FastAPI, gateway: Gateway, prefix: str) -> None:
    """The last one added sees a request first."""
    app.add_middleware(NoticeHeader, gateway=gateway)
    app.add_middleware(AuthMiddleware, gateway=gateway)
    app.add_middleware(HeadMiddleware)
    if gateway.cross_origin.origins:
        app.add_middleware(ApiCorsMiddleware, policy=gateway.cross_origin)
    if prefix:
        app.add_middleware(RootPathMiddleware, prefix=prefix)


def _add_error_handlers(app: FastAPI, gateway: Gateway) -> None:
    async def handle_gateway_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, GatewayError)
        gateway.observer.record_refusal(request.url.path, error.code or error.type)
        return JSONResponse(error_body(request.url.path, error), error.status, error.headers())

    async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return await handle_gateway_error(request, _from_http(error, request))

    async def handle_unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("unhandled exception in a request", exc_info=error)
        failure = GatewayError("The gateway failed; this is not the client's fault.")
        return JSONResponse(error_body(request.url.path, failure), 500)

    async def handle_bad_parameter(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await handle_gateway_error(request, _from_validation(error))

    app.add_exception_handler(GatewayError, handle_gateway_error)
    app.add_exception_handler(RequestValidationError, handle_bad_parameter)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_exception_handler(Exception, handle_unexpected)


def _from_http(error: HTTPException, request: Request) -> GatewayError:
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return NotFound(f"There is no {where}.")
    if error.status_code == 405:
        return _wrong_method(where, (error.headers or {}).get("Allow", ""))
    return InvalidRequest(str(error.detail))


def _wrong_method(where: str, allowed: str) -> MethodNotAllowed:
    methods = {method.strip() for method in allowed.split(",") if method.strip()}
    methods |= {"HEAD"} if "GET" in methods else set()
    error = MethodNotAllowed(f"{where} is not allowed; use {' or '.join(sorted(methods))}.")
    error.allowed = ", ".join(sorted(methods))
    return error


def _from_validation(error: RequestValidationError) -> GatewayError:
    """A parameter of the path or the query; bodies are read by server/apis/shared/request.py."""
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return InvalidRequest(f"Invalid value for '{name}': {first['msg']}.", param=name)
