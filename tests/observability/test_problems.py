"""The problems of this moment, at /debug/speculation."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.speculation.totals import Totals
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.types import EngineInfo, SpeculationInfo
from eaglegate.observability.facts import DepthHeld, EngineChecked, EngineStarted
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.problems import list_problems
from eaglegate.observability.telemetry import Telemetry

INFO = EngineInfo("m", 4096, 2048, SpeculationInfo("eagle3.1", 3, "draft", "K = 3"))


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())


def get_problem(telemetry: Telemetry) -> str:
    """The only problem, or nothing."""
    (problem,) = [*list_problems(telemetry, Totals())] or [""]
    return problem


def test_a_gateway_without_problems_lists_none(telemetry):
    assert summarize_speculation(telemetry)["problems"] == []


def test_an_engine_is_a_problem_while_it_is_down(telemetry):
    telemetry.facts.publish(EngineStarted("default", INFO, 1.0))
    assert get_problem(telemetry) == ""
    telemetry.facts.publish(EngineChecked("default", live=False))
    assert summarize_speculation(telemetry)["problems"] == ["Engine default is down."]
    telemetry.facts.publish(EngineStarted("default", INFO, 1.0))
    assert get_problem(telemetry) == ""


def test_a_depth_is_a_problem_while_it_is_held_off(telemetry):
    hold = DraftHold("eagle3", 5, 2, time.time())
    telemetry.facts.publish(DepthHeld("default", hold, held=True))
    assert "eagle3 killed the engine at depth 5" in get_problem(telemetry)
    telemetry.facts.publish(DepthHeld("default", hold, held=False))
    assert get_problem(telemetry) == ""


def test_a_workload_is_a_problem_while_an_audit_holds_it(telemetry):
    audits: dict[str, Any] = {"holds": {"tools": {}}, "recent": []}
    telemetry.scope.audits = lambda: audits
    assert "eaglegate audit release tools" in get_problem(telemetry)
    audits["holds"].clear()
    assert get_problem(telemetry) == ""


@pytest.mark.parametrize(
    "outcome, age_s, problems",
    [("not cured", 0, 1), ("not treated", 0, 1), ("cured", 0, 0), ("not cured", 4000, 0)],
)
def test_an_uncured_cause_is_a_problem_for_an_hour(telemetry, outcome, age_s, problems):
    diagnosis = {"cause": "draft weights", "outcome": outcome, "at": time.time() - age_s}
    telemetry.scope.doctor = lambda: {"diagnoses": [diagnosis, diagnosis]}
    assert get_problem(telemetry).count("draft weights") == problems


def test_low_memory_is_a_problem(telemetry):
    telemetry.scope.process = lambda: {"memory_shedding": True}
    assert "memory is low" in get_problem(telemetry)


def test_a_draft_that_is_always_wrong_is_a_problem_of_its_worker_or_of_the_gateway(telemetry):
    wrong = Totals(verify_steps=5000, proposed=15000, accepted=90)
    assert [p.split()[0] for p in list_problems(telemetry, wrong)] == ["Acceptance"]
    worker = SimpleNamespace(
        name="http://a", counted=wrong, findings=(SimpleNamespace(text="another template"),)
    )
    telemetry.scope.workers = lambda: [worker]
    problems = list(list_problems(telemetry, Totals()))
    assert problems[0].startswith("http://a: Acceptance length is 1.02")
    assert problems[1] == "http://a: another template"
