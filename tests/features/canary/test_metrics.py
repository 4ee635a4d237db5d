"""Metrics of a canary."""

from __future__ import annotations

from eaglegate.features.canary.metrics import Canaries
from tests.observability.scene import make_telemetry, read


def test_the_effect_has_only_the_ends_that_are_known() -> None:
    telemetry = make_telemetry(())
    row = {"metric": "tpot", "mean": 0.1, "low": None, "high": 0.3, "blocks": 4}
    canary = {"running": True, "blocks": 4, "evidence": [row]}
    telemetry.add_group(lambda scope: Canaries(scope, lambda: canary, lambda: {"promote": 2}))
    assert read(telemetry, "canaries_total", verdict="promote") == 2
    assert read(telemetry, "canary_running") == 1
    assert read(telemetry, "canary_blocks") == 4
    assert read(telemetry, "canary_effect", metric="tpot", end="high") == 0.3
    assert read(telemetry, "canary_effect", metric="tpot", end="low") is None
