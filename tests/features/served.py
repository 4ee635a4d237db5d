"""Applications of features, as the composition root puts them together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from starlette.applications import Starlette

from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.supervisor import SupervisedEngine
from eaglegate.observability.pages import make_routes
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.gateway import Gateway


def make_core(lab: Any, telemetry: Telemetry, engine: Any = None) -> Any:
    """What a feature may use, of a gateway that ``lab`` drives."""
    return SimpleNamespace(
        settings=lab.gateway.settings,
        backend=SimpleNamespace(names=("m",), drafts=None, fleet=None, renderer=lab.renderer),
        engine=engine or SupervisedEngine(ScriptedEngine),
        telemetry=telemetry,
        policy=lab.gateway.require().policy,
        gateway=lab.gateway,
        progress=print,
        operator_url="",
        has_room=lambda: True,
        is_idle=lambda: True,
    )


def make_app(telemetry: Telemetry, ring: Any) -> Starlette:
    """The operator paths, with those of explanations."""
    from eaglegate.features.explanations.routes import router

    gateway = Gateway(models=("m",), created=1)
    gateway.features["explanations"] = SimpleNamespace(ring=ring, telemetry=telemetry)
    return Starlette(routes=[*make_routes(telemetry), *router(gateway).routes])
