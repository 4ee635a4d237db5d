"""The part of a gateway that features see, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from eaglegate.observability.telemetry import Telemetry


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
