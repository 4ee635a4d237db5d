"""Operator paths below /debug/requests: the list of explainable requests, and one explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from eaglegate.features.explanations.ring import explain, summarize
from eaglegate.observability.pages import refuse, refuse_kind, show_json
from eaglegate.observability.windows import KINDS
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.errors import Unavailable

if TYPE_CHECKING:
    from eaglegate.features.explanations.feature import ExplanationFeature

NOT_KEPT = (
    "No request with the id '{id}' is kept, only the newest, slowest, worst accepted and "
    "failed ones. GET /debug/requests lists them."
)


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    async def list_requests(request: Request) -> Response:
        kind = request.query_params.get("kind", "")
        if kind and kind not in KINDS:
            return refuse_kind(kind)
        ring = find_feature().ring
        return show_json(ring.list(kind=kind, name=request.query_params.get("name", "")))

    async def explain_request(request: Request) -> Response:
        feature, name = find_feature(), request.path_params["id"]
        entries = feature.ring.find(name)
        if not entries:
            return refuse(NOT_KEPT.format(id=name[:100]), 404, "not_found", "id")
        entry, *other_entries = entries
        await feature.telemetry.refresh_planner()
        explanation = explain(entry, feature.telemetry.planner)
        return show_json(explanation | {"same_request_id": [*map(summarize, other_entries)]})

    def find_feature() -> ExplanationFeature:
        feature: ExplanationFeature | None = gateway.features.get("explanations")
        if feature is None:
            raise Unavailable("This gateway explains no requests.")
        return feature

    for path, endpoint in (
        ("/debug/requests", list_requests),
        ("/debug/requests/{id}", explain_request),
    ):
        routes.add_route(path, endpoint, methods=["GET"], include_in_schema=False)
    return routes
