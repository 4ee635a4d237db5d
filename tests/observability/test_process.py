"""The gateway process's use of its limits, on /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.metrics.engine import HELP
from eaglegate.observability.pages import render_metrics
from eaglegate.observability.telemetry import Telemetry


def test_every_value_that_is_known_is_shown():
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=()), CollectorRegistry())
    assert b"eaglegate_memory" not in lines(telemetry)
    telemetry.scope.process = lambda: dict.fromkeys(HELP, 3.0) | {"memory_shedding": True}
    shown = lines(telemetry)
    assert b"eaglegate_memory_shedding 1.0" in shown
    for name in set(HELP) - {"memory_shedding"}:
        assert f"eaglegate_{name} 3.0".encode() in shown


def lines(telemetry):
    shown = render_metrics(telemetry.registry)
    return b"\n".join(line for line in shown.splitlines() if not line.startswith(b"#"))
