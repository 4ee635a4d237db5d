"""The problems of this moment, at /debug/speculation."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo, SpeculationInfo
from eaglegate.observability.facts import DepthHeld, EngineChecked, EngineStarted
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.problems import list_problems
from eaglegate.observability.telemetry import Telemetry

INFO = EngineInfo("m", 4096, 2048, SpeculationInfo("eagle3.1", 3, "draft", "K = 3"))


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
    telemetry.facts.publish(DepthHeld("default", hold, is_held=True))
    assert "eagle3 killed the engine at depth 5" in get_problem(telemetry)
    telemetry.facts.publish(DepthHeld("default", hold, is_held=False))
    assert get_problem(telemetry) == ""


def test_the_problems_of_further_parts_are_listed(telemetry):
    telemetry.parts.append(SimpleNamespace(list_problems=lambda: ["It is late."]))
    assert get_problem(telemetry) == "It is late."


@pytest.mark.parametrize(
    ("steps", "frozen", "is_stuck"), [(2000, None, True), (1999, None, False), (9999, 0, False)]
)
def test_a_planner_that_tries_no_draft_is_a_problem(telemetry, steps, frozen, is_stuck):
    telemetry.scope.planner = lambda: {"steps_since_draft": steps, "frozen": frozen}
    assert (f"no draft for {steps} steps" in get_problem(telemetry)) is is_stuck


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
