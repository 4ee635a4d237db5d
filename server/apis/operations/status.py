"""Routes of GET /v1/models, /health, /ready, /ping, /load and /version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from server.apis.shared.gateway import Gateway
from server.errors import NotFound

RETRY = {"retry-after": "5"}


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()
    _add_models(routes, gateway)
    _add_health(routes, gateway)

    @routes.get("/load")
    async def load() -> dict[str, int]:
        """The number of in-flight requests, under ``vllm serve``'s name."""
        path = gateway.path
        return {"server_load": 0 if path is None else path.admission.num_in_flight}

    @routes.get("/version")
    async def versions() -> dict[str, str]:
        return {"version": version("eaglegate")}

    return routes


def _add_models(routes: APIRouter, gateway: Gateway) -> None:
    def card(name: str) -> dict[str, Any]:
        known: dict[str, Any] = (
            {} if gateway.path is None else {"max_model_len": gateway.path.info.max_model_len}
        )
        if gateway.path is not None and name in gateway.path.served.adapters:
            known["parent"] = gateway.models[0]
        return {
            "id": name,
            "object": "model",
            "created": gateway.created,
            "owned_by": "eaglegate",
            **known,
        }

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in gateway.models]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name not in gateway.models:
            raise NotFound(
                f"The model '{name}' does not exist here. This gateway serves: "
                f"{', '.join(gateway.models)}.",
                param="model",
                code="model_not_found",
            )
        return card(name)


def _add_health(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/health")
    async def health() -> dict[str, str]:
        """Liveness: the process runs."""
        return {"status": "ok"}

    async def readiness() -> JSONResponse:
        if gateway.path is None or gateway.state != "ready":
            return JSONResponse({"status": gateway.state}, 503, RETRY)
        engine = await gateway.path.engine.health()
        if not engine.live:
            return JSONResponse({"status": "engine_dead", "reason": engine.reason}, 503, RETRY)
        if gateway.memory.shedding and gateway.in_flight:
            reason = f"short of memory: {gateway.memory.summary}"
            return JSONResponse({"status": "shedding", "reason": reason}, 503, RETRY)
        return JSONResponse({"status": "ready", "engine": _facts(gateway)})

    @routes.get("/ready")
    async def ready() -> JSONResponse:
        """Readiness: the gateway accepts requests."""
        return await readiness()

    @routes.get("/ping", response_class=Response)
    @routes.post("/ping", response_class=Response)
    async def ping() -> Response:
        """Readiness with an empty body, for SageMaker."""
        status = (await readiness()).status_code
        return Response(status_code=status, headers=None if status == 200 else RETRY)


def _facts(gateway: Gateway) -> dict[str, Any]:
    assert gateway.path is not None
    info = gateway.path.info
    return {
        "model": gateway.models[0],
        "max_model_len": info.max_model_len,
        "speculation": info.speculation.summary,
        "num_speculative_tokens": info.speculation.depth,
    }
