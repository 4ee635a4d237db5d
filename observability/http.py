"""The pages telemetry offers: thin adapters, mounted by the composition root."""

from __future__ import annotations

from importlib.resources import files

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from observability.debug import summarize_speculation
from observability.exposition import CONTENT_TYPE, render_metrics
from observability.telemetry import Telemetry


def make_routes(telemetry: Telemetry) -> list[Route]:
    """``/metrics`` for Prometheus, ``/debug/speculation`` for programs, ``/`` for people."""
    page = files("observability").joinpath("page.html").read_text(encoding="utf-8")

    async def metrics(_: Request) -> Response:
        telemetry.settle()
        return Response(render_metrics(telemetry.registry), media_type=CONTENT_TYPE)

    async def debug(_: Request) -> Response:
        body = orjson.dumps(summarize_speculation(telemetry), option=orjson.OPT_INDENT_2)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    async def home(_: Request) -> Response:
        return HTMLResponse(page)

    return [
        Route("/metrics", metrics, methods=["GET"]),
        Route("/debug/speculation", debug, methods=["GET"]),
        Route("/", home, methods=["GET"]),
    ]
