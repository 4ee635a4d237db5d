"""The doctor over HTTP: /admin/doctor and metrics."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.speculation.draft_versions import DraftVersion
from eaglegate.features.doctor.diagnosis import Cause, Cure, Treatment
from eaglegate.features.doctor.doctor import Doctor, Mode
from eaglegate.features.doctor.feature import DoctorFeature, list_uncured_causes
from eaglegate.features.doctor.settings import DoctorSettings
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import render_metrics, summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.cli.feature import build_features
from eaglegate.server.errors import ConfigError
from tests.features.served import make_core


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())


@pytest.fixture
def doctor(lab: Any, telemetry: Telemetry) -> Doctor:
    (feature,) = build_features(make_core(lab, telemetry), [DoctorSettings("cure")])
    assert isinstance(feature, DoctorFeature)
    feature.doctor.change_draft(DraftVersion("abc", "", ""))
    return feature.doctor


def test_the_engine_of_this_process_has_a_doctor(lab: Any, telemetry: Telemetry) -> None:
    settings = DoctorSettings("cure")
    assert settings.is_on
    assert DoctorFeature(make_core(lab, telemetry), settings).doctor.mode is Mode.CURE
    assert not DoctorSettings().is_on
    with pytest.raises(ConfigError, match="workers have none"):
        DoctorFeature(make_core(lab, telemetry, ScriptedEngine()), settings)


@pytest.mark.parametrize(
    ("outcome", "age_s", "problems"),
    [("not cured", 0, 1), ("not treated", 0, 1), ("cured", 0, 0), ("not cured", 4000, 0)],
)
def test_an_uncured_cause_is_a_problem_for_an_hour(
    outcome: str, age_s: float, problems: int
) -> None:
    diagnosis = {"cause": "draft weights", "outcome": outcome, "at": time.time() - age_s}
    assert len([*list_uncured_causes([diagnosis, diagnosis])]) == problems


async def test_without_a_doctor_the_path_says_how_to_begin(lab: Any) -> None:
    answer = await lab.get("/admin/doctor")
    assert answer.status == 409
    assert "--doctor watch" in answer.json["error"]["message"]


async def test_diagnoses_are_shown_counted_and_logged(
    lab: Any, doctor: Doctor, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
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
