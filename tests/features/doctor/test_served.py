"""The doctor over HTTP: /admin/doctor and metrics."""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.base import DraftVersion
from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.supervisor import SupervisedEngine
from eaglegate.features.doctor.cures import Reload
from eaglegate.features.doctor.diagnosis import Cause, Cure, Treatment
from eaglegate.features.doctor.doctor import Doctor, Mode
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import render_metrics, summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.gateway import Controls
from eaglegate.server.cli.observing import open_doctor
from eaglegate.server.errors import ConfigError


async def nothing(*_: Any) -> Any:
    raise AssertionError


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())


@pytest.fixture
def doctor(telemetry: Telemetry) -> Doctor:
    made = Doctor(Mode.CURE, telemetry, lambda: True)
    made.change_draft(DraftVersion("abc", "", ""))
    telemetry.scope.doctor = made.describe
    return made


def test_the_engine_of_this_process_has_a_doctor(telemetry: Telemetry) -> None:
    def make(mode: Mode, reload: Reload | None) -> Doctor:
        return Doctor(mode, telemetry, lambda: True, reload)

    engine = SupervisedEngine(ScriptedEngine)
    found = open_doctor(Namespace(doctor="cure"), engine, None, make)
    assert found is not None
    assert found.mode is Mode.CURE
    assert open_doctor(Namespace(doctor="off"), engine, None, make) is None
    with pytest.raises(ConfigError, match="workers have none"):
        open_doctor(Namespace(doctor="cure"), ScriptedEngine(), None, make)  # type: ignore[arg-type]


async def test_without_a_doctor_the_path_says_how_to_begin(lab: Any) -> None:
    lab.gateway.controls = Controls(nothing, nothing)
    answer = await lab.get("/admin/doctor")
    assert answer.status == 409
    assert "--doctor watch" in answer.json["error"]["message"]


async def test_diagnoses_are_shown_counted_and_logged(
    lab: Any, doctor: Doctor, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    lab.gateway.controls = Controls(nothing, nothing, doctor=doctor)
    done = (Treatment(Cure.RELOAD, 0.3, 0.01, 1.5, True),)
    with caplog.at_level(logging.INFO):
        doctor._conclude("", Cause.WEIGHTS, 0.3, 8, done)
    shown = (await lab.get("/admin/doctor")).json
    assert shown["diagnoses"][0]["outcome"] == "cured"
    assert shown["diagnoses"][0]["treatments"][0]["cure"] == "reload draft"
    assert "cause: draft weights" in caplog.text
    assert "reload draft: fall 30.0% -> 1.0% in 1.5 s" in caplog.text
    page = render_metrics(telemetry.registry).decode()
    assert (
        'eaglegate_diagnoses_total{cause="draft weights",draft="abc",outcome="cured"} 1.0' in page
    )
    assert 'eaglegate_cures_total{cure="reload draft",cured="true"} 1.0' in page
    assert summarize_speculation(telemetry)["doctor"]["mode"] == "cure"
