"""The operator paths with those of explanations, as the composition root puts them together."""

from __future__ import annotations

from types import SimpleNamespace

from starlette.applications import Starlette

from eaglegate.features.explanations.ring import ExplanationRing
from eaglegate.features.explanations.routes import router
from eaglegate.observability.pages import make_routes
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.gateway import Gateway


def make_app(telemetry: Telemetry, ring: ExplanationRing) -> Starlette:
    """The operator paths, with those of explanations."""
    gateway = Gateway(models=("m",), created=1)
    gateway.features["explanations"] = SimpleNamespace(ring=ring, telemetry=telemetry)
    return Starlette(routes=[*make_routes(telemetry), *router(gateway).routes])
