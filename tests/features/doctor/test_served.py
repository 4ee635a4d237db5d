"""The doctor over HTTP: /admin/doctor and metrics."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.speculation.drafts.versions import DraftVersion
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.features.doctor.diagnosis import Cause, Diagnosis
from eaglegate.features.doctor.doctor import Doctor
from eaglegate.features.doctor.feature import DoctorFeature, list_faults
from eaglegate.features.doctor.settings import DoctorSettings
from eaglegate.features.doctor.trials import PairedTrial, TrialRun
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.cli.feature import build_features
from eaglegate.server.errors import ConfigError
from tests.features.served import make_core
from tests.observability.scene import read_page


@pytest.fixture
def doctor(lab: Any, telemetry: Telemetry) -> Doctor:
    (feature,) = build_features(make_core(lab, telemetry), [DoctorSettings("watch")])
    assert isinstance(feature, DoctorFeature)
    feature.doctor.change_draft(DraftVersion("abc", "", ""))
    return feature.doctor


def test_the_engine_of_this_process_has_a_doctor(lab: Any, telemetry: Telemetry) -> None:
    settings = DoctorSettings("watch")
    assert settings.is_on
    assert DoctorFeature(make_core(lab, telemetry), settings).doctor
    assert not DoctorSettings().is_on
    with pytest.raises(ConfigError, match="workers have none"):
        DoctorFeature(make_core(lab, telemetry, ScriptedEngine()), settings)


@pytest.mark.parametrize(
    ("cause", "age_s", "problems"),
    [(Cause.WEIGHTS, 0, 1), (Cause.CACHE, 0, 1), (Cause.TRAFFIC, 0, 0), (Cause.WEIGHTS, 4000, 0)],
)
def test_a_fault_is_a_problem_for_an_hour(cause: Cause, age_s: float, problems: int) -> None:
    diagnosis = Diagnosis(time.time() - age_s, "abc", "", cause, 0.3, 8, 20)
    lines = [*list_faults([diagnosis, diagnosis])]
    assert len(lines) == problems
    assert all("docs/doctor.md#what-to-do" in line for line in lines)


def test_the_former_name_of_watching_still_works(
    lab: Any, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert build_features(make_core(lab, telemetry), [DoctorSettings("cure")])
    assert "--doctor cure is now --doctor watch" in caplog.text


async def test_without_a_doctor_the_path_says_how_to_begin(lab: Any) -> None:
    answer = await lab.get("/admin/doctor")
    assert answer.status == 409
    assert "--doctor watch" in answer.json["error"]["message"]


async def test_diagnoses_are_shown_counted_and_logged(
    lab: Any, doctor: Doctor, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    request = EngineRequest("r", (1,), Sampling(1))
    trials = [PairedTrial(request, TrialRun((1,), 10), TrialRun((1,), 7))] * 8
    with caplog.at_level(logging.INFO):
        doctor._conclude("", Cause.WEIGHTS, trials)
    shown = (await lab.get("/admin/doctor")).json
    assert shown["diagnoses"][0]["outcome"] == "not treated"
    assert "cause: draft weights (acceptance length 30.0% lower in 8 trials)" in caplog.text
    page = read_page(telemetry)
    labels = 'cause="draft weights",draft="abc",outcome="not treated"'
    assert f"eaglegate_diagnoses_total{{{labels}}} 1.0" in page
    assert summarize_speculation(telemetry)["doctor"]["diagnoses"]
