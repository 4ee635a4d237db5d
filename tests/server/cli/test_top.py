"""``eaglegate top``: the readings and the words."""

from __future__ import annotations

import json

import pytest

from eaglegate.engine.types import DecodeStep, Step
from eaglegate.observability.facts import EngineChecked
from eaglegate.observability.middleware import HttpExchange
from eaglegate.observability.pages import summarize_speculation
from eaglegate.server.__main__ import main
from eaglegate.server.access.admission import Admission
from eaglegate.server.cli.client import CallFailed
from eaglegate.server.cli.top import panels
from eaglegate.server.cli.top.command import explain_failure
from eaglegate.server.cli.top.panels import GatewayReading
from tests.features.explanations.test_explain import SECRET, Traffic

GOOD_STEP = Step((1, 2, 3), (DecodeStep(3, 2, 3),))
REJECTED = Step((1,), (DecodeStep(3, 0, 1),))
HOSTILE = "/v1/<b>\x1b[31mred\u202e[/bold]\n" + "x" * 300


class FakeReader:
    """Reads a telemetry in this process."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic

    def read(self) -> GatewayReading:
        telemetry = self.traffic.telemetry
        return GatewayReading(
            json.loads(json.dumps(summarize_speculation(telemetry))),
            self.traffic.ring.list(),
        )


@pytest.fixture
def reader() -> FakeReader:
    traffic = Traffic()
    for _ in range(3):
        traffic.answer([(0.1, Step((1,))), (0.02, GOOD_STEP), (0.02, REJECTED)])
    refused = HttpExchange("r-hostile", "POST", HOSTILE, "", 1.0, 429)
    refused.refused, refused.ended = "queue_full", 1.5
    traffic.ring.complete(refused)
    traffic.telemetry.scope.admission = Admission
    return FakeReader(traffic)


def test_plain_text_has_every_part(reader):
    text = "\n".join(panels.format_plain(reader.read()))
    assert "acceptance length            2.00" in text
    assert "50 %  of decode steps" in text
    assert "0 of 256 sequences in the engine; 0 of 1024 requests queued; 0 of 1.0M" in text
    assert "slices by workload, last 5 minutes" in text
    assert "req-3" in text and "r-hostile" in text
    assert SECRET not in text and not {"\x1b", "\u202e"} & set(text)
    assert not {"None", "nan", "inf"} & set(text.split())


def test_plain_text_without_traffic():
    text = "\n".join(panels.format_plain(FakeReader(Traffic()).read()))
    assert "no draft verified" in text
    assert not {"None", "nan", "inf"} & set(text.split())


def test_a_problem_is_a_state(reader):
    reader.traffic.telemetry.facts.publish(EngineChecked("default\x1b[2J", live=False))
    (state,) = (s for s in panels.list_states(reader.read()) if s.name == "problem")
    assert state == panels.State("problem", "Engine default\\x1b[2J is down.", True)


def planner(steps: list[int]) -> dict:
    return {
        "frozen": None, "steps_by_depth": steps, "steps_by_reason": {"best": sum(steps)},
        "gain": 1.5, "steps_since_draft": 7,
    }  # fmt: skip


def test_the_planner_tells_its_choices_since_the_reading_before(reader):
    now, before = reader.read(), reader.read()
    before.speculation["planner"] = planner([90, 10])
    now.speculation["planner"] = planner([90, 30])
    (state,) = (s for s in panels.list_states(now, before) if s.name == "planner")
    assert "in the last seconds  1: 100 %" in state.text
    (state,) = (s for s in panels.list_states(now) if s.name == "planner")
    assert "since the start  0: 75 %  1: 25 %" in state.text
    (gain,) = (figure for figure in panels.list_figures(now) if figure.value == "1.50x")
    assert gain.note == "estimated, last draft 7 steps ago"


def test_no_gateway_is_an_error_in_words(capsys):
    assert main(["top", "http://127.0.0.1:9"]) == 1
    assert "does not answer" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["top", "--interval", "0"])
    assert "at least 0.1 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "status, hint", [(401, "EAGLEGATE_ADMIN_API_KEY"), (404, "admin port"), (500, "")]
)
def test_a_refusal_says_what_to_do(status, hint):
    assert hint in explain_failure(CallFailed("no", status))
