"""``eaglegate top``: the readings, the words, and the screen on terminals of any size."""

from __future__ import annotations

import json
import sys

import pytest
from textual.widgets import DataTable, Static

from eaglegate.engine.types import DecodeStep, Step
from eaglegate.features.explanations.ring import explain
from eaglegate.observability.facts import EngineChecked
from eaglegate.observability.middleware import HttpExchange
from eaglegate.observability.pages import render_metrics, summarize_speculation
from eaglegate.server.__main__ import main
from eaglegate.server.cli.client import CallFailed
from eaglegate.server.cli.top import command, panels
from eaglegate.server.cli.top.reading import (
    GatewayReader,
    GatewayReading,
    MetricsPage,
    explain_failure,
)
from eaglegate.server.cli.top.screen import ExplanationScreen, TopApp
from tests.features.explanations.test_explain import SECRET, Traffic

GOOD_STEP = Step((1, 2, 3), (DecodeStep(3, 2, 3),))
REJECTED = Step((1,), (DecodeStep(3, 0, 1),))
HOSTILE = "/v1/<b>\x1b[31mred\u202e[/bold]\n" + "x" * 300
SIZES = [(30, 10), (80, 24), (200, 60)]


class FakeReader(GatewayReader):
    """Reads a telemetry in this process; raises what it is told to."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__("127.0.0.1:8000")
        self.traffic = traffic
        self.failure: CallFailed | None = None
        self.asked: list[str] = []

    def read(self) -> GatewayReading:
        if self.failure is not None:
            raise self.failure
        telemetry = self.traffic.telemetry
        return GatewayReading(
            json.loads(json.dumps(summarize_speculation(telemetry))),
            self.traffic.ring.list(),
            MetricsPage.parse(render_metrics(telemetry.registry).decode()),
            self.traffic.now,
        )

    def explain(self, name):
        self.asked.append(name)
        (entry,) = self.traffic.ring.find(name)
        return explain(entry, {})


@pytest.fixture
def reader() -> FakeReader:
    traffic = Traffic()
    for _ in range(3):
        traffic.answer([(0.1, Step((1,))), (0.02, GOOD_STEP), (0.02, REJECTED)])
    refused = HttpExchange("r-hostile", "POST", HOSTILE, "", 1.0, 429)
    refused.refused, refused.ended = "queue_full", 1.5
    traffic.ring.complete(refused)
    traffic.telemetry.record_refusal("chat", "queue_full")
    return FakeReader(traffic)


def test_plain_text_has_every_part(reader):
    text = "\n".join(panels.format_plain(reader.read()))
    assert "acceptance length            2.00" in text
    assert "50 % of decode steps" in text.replace("rejected ", "")
    assert "refused 1 (queue_full 1)" in text
    assert "slices by workload, last 5 minutes" in text
    assert "req-3" in text and "r-hostile" in text
    assert SECRET not in text and "\x1b" not in text
    assert not {"None", "nan", "inf"} & set(text.split())


def test_plain_text_without_traffic():
    text = "\n".join(panels.format_plain(FakeReader(Traffic()).read()))
    assert "no draft verified" in text
    assert not {"None", "nan", "inf"} & set(text.split())


def test_a_request_that_was_refused_lately_is_marked(reader):
    before = reader.read()
    reader.traffic.telemetry.record_refusal("chat", "queue_full")
    (admission,) = (s for s in panels.list_states(reader.read(), before) if s.name == "admission")
    assert admission.tone == "warn" and "refused 2" in admission.text
    (calm,) = (s for s in panels.list_states(before, before) if s.name == "admission")
    assert calm.tone == ""


def test_a_problem_is_a_state(reader):
    reader.traffic.telemetry.facts.publish(EngineChecked("default\x1b[2J", live=False))
    (state,) = (s for s in panels.list_states(reader.read()) if s.name == "problem")
    assert state == panels.State("problem", "Engine default\\x1b[2J is down.", "bad")


def planner(steps: list[int]) -> dict:
    return {
        "frozen": None, "steps_by_depth": steps, "steps_by_reason": {"best": sum(steps)},
        "gain": 1.5,
    }  # fmt: skip


def test_the_planner_tells_its_choices_since_the_reading_before(reader):
    now, before = reader.read(), reader.read()
    before.speculation["planner"] = planner([90, 10])
    now.speculation["planner"] = planner([90, 30])
    (state,) = (s for s in panels.list_states(now, before) if s.name == "planner")
    assert "in the last seconds  1: 100 %" in state.text
    (state,) = (s for s in panels.list_states(now) if s.name == "planner")
    assert "since the start  0: 75 %  1: 25 %" in state.text
    assert any(figure.value == "1.50x" for figure in panels.list_figures(now))


def test_metrics_are_added_up_by_label():
    page = MetricsPage.parse(
        'eaglegate_x_total{a="1",b="say \\"}\\""} 2.0\neaglegate_x_total{a="2",b=""} 3\n'
        'vllm:x{a="1"} 9\neaglegate_y 1e+06\n'
    )
    assert page.total("x_total") == 5
    assert page.total("x_total", a="1") == 2
    assert page.total("z") is None
    assert page.by("x_total", "a") == {"1": 2, "2": 3}
    assert page.total("y") == 1e6


def words(app: TopApp, name: str) -> str:
    return str(app.query_one(name, Static).render())


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_screen_on_any_terminal(reader, size):
    app = TopApp(reader, reader.read(), 60)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "eaglegate" in words(app, "#head")
        assert app.query_one("#slices", DataTable).get_cell_at((0, 0)).plain == "chat"
        assert words(app, "#requests-title") == "requests, slowest first"
        await pilot.press("r")
        assert words(app, "#requests-title") == "requests, newest first"
        await pilot.press("s")
        assert words(app, "#slices-title").startswith("slices by lane")
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_row_explains_its_request(reader):
    app = TopApp(reader, reader.read(), 60)
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("r", "down", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert reader.asked == ["req-3"]
        assert isinstance(app.screen, ExplanationScreen)
        text = str(app.screen.query_one(Static).render())
        assert "wall time" in text and SECRET not in text
        await pilot.press("escape")
        assert not isinstance(app.screen, ExplanationScreen)


async def test_foreign_text_is_escaped_on_the_screen(reader):
    app = TopApp(reader, reader.read(), 60)
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("r", "enter")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = str(app.screen.query_one(Static).render())
        assert "<b>\\x1b[31mred\\u202e[/bold]" in text
        assert not {"\x1b", "\u202e"} & set(text)


async def test_a_gateway_that_goes_away_is_waited_for(reader):
    app = TopApp(reader, reader.read(), 60)
    async with app.run_test(size=(100, 40)) as pilot:
        reader.failure = CallFailed("http://127.0.0.1:8000/metrics does not answer: refused")
        for _ in range(2):
            app._poll()
            await app.workers.wait_for_complete()
        await pilot.pause()
        assert "trying again" in words(app, "#head") and "refused" in words(app, "#head")
        reader.failure = None
        app._poll()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "trying again" not in words(app, "#head")
        await pilot.press("p")
        assert "paused" in words(app, "#head")


def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys, reader):
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "eaglegate.server.cli.top.screen", raising=False)
    assert command._show(reader, reader.read(), 2.0) == 2
    assert "pip install '.[top]' in eaglegate's checkout" in capsys.readouterr().err


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
