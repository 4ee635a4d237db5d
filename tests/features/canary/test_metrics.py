"""Metrics of a canary."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from eaglegate.features.canary.metrics import Canaries
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.telemetry import Telemetry


def test_the_effect_has_only_the_ends_that_are_known() -> None:
    telemetry = Telemetry((), TelemetrySettings(models=("m",)), CollectorRegistry())
    row = {"metric": "tpot", "mean": 0.1, "low": None, "high": 0.3, "blocks": 4}
    canary = {"running": True, "blocks": 4, "evidence": [row]}
    telemetry.add_group(lambda scope: Canaries(scope, lambda: canary, lambda: {"promote": 2}))
    sample = telemetry.registry.get_sample_value
    assert sample("eaglegate_canaries_total", {"verdict": "promote"}) == 2
    assert sample("eaglegate_canary_running") == 1
    assert sample("eaglegate_canary_blocks") == 4
    assert sample("eaglegate_canary_effect", {"metric": "tpot", "end": "high"}) == 0.3
    assert sample("eaglegate_canary_effect", {"metric": "tpot", "end": "low"}) is None
