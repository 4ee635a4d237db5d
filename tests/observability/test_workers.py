"""The workers of a fleet as metrics and on the page."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from eaglegate.engine.fleet.types import (
    FindingKind,
    RoutingReason,
    WorkerFinding,
    WorkerState,
    WorkerStatus,
)
from eaglegate.engine.totals import Totals
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.metrics.engine import MOST
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry

PREFIX = "eaglegate_worker_"


def status(
    name: str, state: WorkerState = WorkerState.SERVING, counted: Totals | None = None
) -> WorkerStatus:
    requests = dict.fromkeys((why.value for why in RoutingReason), 1) | {"session": 4}
    return WorkerStatus(name, state, "", 2, 150.5, requests, 90, 3, 1, 1, counted)


def watching(*workers: WorkerStatus) -> Telemetry:
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())
    telemetry.scope.workers = lambda: workers
    return telemetry


def test_each_worker_has_its_series():
    counted = Totals(verify_steps=10, proposed=30, accepted=15)
    telemetry = watching(status("http://a", counted=counted), status("http://b", WorkerState.OPEN))

    def read(name: str, **labels: str) -> float | None:
        return telemetry.registry.get_sample_value(PREFIX + name, labels)

    assert read("state", worker="http://b", state="open") == 1
    assert read("state", worker="http://b", state="serving") == 0
    assert read("requests_total", worker="http://a", why="session") == 4
    assert read("outstanding_tokens", worker="http://a") == 150.5
    assert read("moved_requests_total", worker="http://a", how="retried") == 3
    assert read("accepted_tokens_total", worker="http://a") == 15
    assert read("accepted_tokens_total", worker="http://b") is None, "unknown is not nought"


def test_without_a_fleet_there_are_no_series():
    telemetry = watching()
    names = {sample.name for family in telemetry.registry.collect() for sample in family.samples}
    assert not any(name.startswith(PREFIX) for name in names)


def test_a_great_many_workers_are_added_up():
    telemetry = watching(*(status(f"http://{at:03}") for at in range(MOST + 7)))
    read = telemetry.registry.get_sample_value
    assert read(PREFIX + "tokens_total", {"worker": "other"}) == 7 * 90
    assert read(PREFIX + "state", {"worker": "other", "state": "serving"}) == 7
    families = {family.name: family for family in telemetry.registry.collect()}
    assert len(families[PREFIX + "tokens"].samples) == MOST + 1


def test_the_page_gets_them():
    counted = Totals(verify_steps=10, proposed=30, accepted=15)
    (row,) = summarize_speculation(watching(status("http://a", counted=counted)))["workers"]
    assert row["name"] == "http://a"
    assert row["state"] == "serving"
    assert row["acceptance_length"] == 2.5
    assert summarize_speculation(watching())["workers"] == []


def test_findings_of_the_probe_are_in_the_metrics_and_on_the_page():
    text = "it has another chat template: start both with the same --chat-template"
    finding = WorkerFinding(FindingKind.TEMPLATE, text)
    telemetry = watching(replace(status("http://a"), findings=(finding,)), status("http://b"))
    read = telemetry.registry.get_sample_value
    assert read(PREFIX + "findings", {"worker": "http://a", "kind": "template"}) == 1
    assert read(PREFIX + "findings", {"worker": "http://b", "kind": "template"}) is None
    rows = summarize_speculation(telemetry)["workers"]
    assert [row["findings"] for row in rows] == [[{"kind": "template", "text": text}], []]
