"""A supervisor's reports on the metrics page."""

from __future__ import annotations

from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.engine.supervision.policy import LossCause, RecoveryOutcome
from eaglegate.observability.engine import SupervisionObserver
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import render_metrics
from eaglegate.observability.telemetry import Telemetry


def test_losses_and_what_became_of_requests_are_counted():
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("demo",)))
    watch = SupervisionObserver(telemetry)
    watch.record_loss(LossCause.HUNG)
    watch.record_interruption(RecoveryOutcome.RESUMED, "r-1")
    page = render_metrics(telemetry.registry).decode()
    assert 'eaglegate_engine_losses_total{cause="hung",engine="default"} 1.0' in page
    assert 'eaglegate_interrupted_requests_total{outcome="resumed"} 1.0' in page
    assert 'eaglegate_engine_up{engine="default"} 0.0' in page
    watch.record_recovery(DEFAULT_INFO, 3.5)
    page = render_metrics(telemetry.registry).decode()
    assert 'eaglegate_engine_up{engine="default"} 1.0' in page
    assert 'eaglegate_engine_start_seconds{engine="default"} 3.5' in page
