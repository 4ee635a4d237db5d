"""A day of history in the process, and the windows that it is made of."""

from __future__ import annotations

import httpx
import pytest

from eaglegate.engine.events import Ending, Finish, Usage
from eaglegate.engine.speculation.drafts.versions import DraftSwap
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    DecodeStep,
    EngineInfo,
    SpeculationInfo,
    Step,
)
from eaglegate.features.explanations.feature import follow
from eaglegate.features.explanations.ring import ExplanationRing
from eaglegate.observability import history
from eaglegate.observability.facts import DraftSwapped, EngineLost, EngineStarted
from eaglegate.observability.history import MOST_SLICES, SLOT_S, SLOTS
from eaglegate.observability.windows import SlidingWindow, WindowSums
from eaglegate.text.events import ContentDelta, Outcome, ToolCallEnd, ToolCallStart
from tests.features.explanations.application import make_app
from tests.observability.scene import begin, make_telemetry

INFO = EngineInfo("m", 4096, 2048, SpeculationInfo("eagle3.1", 3, "draft", "K = 3"))


class Day:
    """Telemetry whose clock we move."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.telemetry = make_telemetry(clock=lambda: self.now)
        self.telemetry.history.wall_clock = lambda: self.now
        self.ring = ExplanationRing(lambda: self.now)
        follow(self.ring, self.telemetry.facts)
        self.num = 0

    def answer(self, workload: str = "chat", steps=10, accepted=2, tools=()) -> None:
        self.num += 1
        observation = begin(self.telemetry, id=f"r{self.num}", workload=workload)
        sequence, tell = observation.sequences["r-0"], observation.choice("r-0")
        self.now += 0.1
        sequence.add_step(Step((1,)))
        tell(ContentDelta("x"))
        for _ in range(steps):
            self.now += 0.01
            account = DecodeStep(3, accepted, accepted + 1)
            sequence.add_step(Step((1,) * (accepted + 1), (account,)))
            tell(ContentDelta("x"))
        for at, outcome in enumerate(tools):
            tell(ToolCallStart(at, "i", "f"))
            tell(ToolCallEnd(at, outcome))
        tell(Finish("stop", Usage(prompt=20, completion=sequence.tokens)))
        observation.end(Ending.COMPLETED)

    def describe(self, *of: str):
        self.telemetry.settle()
        return self.telemetry.history.describe(*of)


@pytest.fixture
def day() -> Day:
    return Day()


def test_slots_hold_what_every_slice_did(day):
    day.answer("chat", accepted=2)
    day.answer("tools", accepted=0, tools=[Outcome.VALID, Outcome.MALFORMED])
    day.telemetry.settle()
    day.now += SLOT_S
    day.answer("chat", accepted=1)
    whole, chat = day.describe(), day.describe("workload", "chat")
    assert [slot["requests"] for slot in whole["slots"]] == [2, 1]
    assert [slot["requests"] for slot in chat["slots"]] == [1, 1]
    assert [slot["acceptance_length"] for slot in chat["slots"]] == [3.0, 2.0]
    assert chat["slots"][0]["steps_by_depth"] == [0, 0, 0, 10]
    assert whole["slots"][0]["tools"] == {"valid": 1, "malformed": 1}
    assert whole["counts"]["ended"] == {"completed": 3}
    assert whole["slots"][0]["ttft_s"] == pytest.approx(0.1)


def test_a_day_is_kept_and_no_more(day):
    for _ in range(SLOTS + 10):
        day.answer(steps=1)
        day.telemetry.settle()
        day.now += SLOT_S
    slots = day.describe()["slots"]
    assert len(slots) == SLOTS
    assert slots[-1]["at"] - slots[0]["at"] == (SLOTS - 1) * SLOT_S


def test_slices_of_a_slot_are_bounded():
    slot = history.Slot(1)
    for at in range(MOST_SLICES + 50):
        slot.add(("template", str(at)), history.WindowSums(1))
    slot.add(("template", "0"), history.WindowSums(1))
    assert len(slot.slices) == MOST_SLICES
    assert slot.slices["template", "0"].requests == 2


def test_events_tell_the_lives_of_engines_and_drafts(day):
    day.telemetry.facts.publish(EngineStarted("default", INFO, 12.0))
    day.telemetry.facts.publish(EngineLost("default", "crash"))
    day.telemetry.facts.publish(DraftSwapped(DraftSwap(1.0, "swap", "a" * 64, "b" * 64)))
    told = [(event["what"], event["name"][:7]) for event in day.describe()["events"]]
    assert told == [
        ("engine started", "default"),
        ("engine lost", "default"),
        ("draft swap", "bbbbbbb"),
    ]


async def test_the_routes_give_the_day_and_the_requests_of_a_slice(day):
    day.answer("chat")
    day.answer("tools")
    app = make_app(day.telemetry, day.ring)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        asked = {"kind": "workload", "name": "tools"}
        found = (await client.get("/debug/history", params=asked)).json()
        assert [slot["requests"] for slot in found["slots"]] == [1]
        listed = (await client.get("/debug/requests", params=asked)).json()
        assert [row["id"] for row in listed["recent"]] == ["r2"]
        asked = {"kind": "phase", "name": "content"}
        listed = (await client.get("/debug/requests", params=asked)).json()
        assert [row["id"] for row in listed["recent"]] == ["r2", "r1"]
        asked = {"kind": "workload", "name": "<script>"}
        assert (await client.get("/debug/requests", params=asked)).json()["recent"] == []
        for path in ("/debug/history", "/debug/requests"):
            refused = await client.get(path, params={"kind": "nope"})
            assert refused.status_code == 400
            assert "one of all, lane, workload" in refused.json()["error"]["message"]
            assert "given 'nope'" in refused.json()["error"]["message"]
        data = (await client.get("/debug/speculation")).json()
        assert data["gpus"] == [] and data["admission"] is None


def sums(steps: int, accepted: int) -> WindowSums:
    return WindowSums(1, steps, float(steps), Totals(verify_steps=steps, accepted=accepted))


def test_the_window_forgets_and_the_baseline_remembers():
    window = SlidingWindow(span_s=300, half_life_s=3600)
    window.add(sums(100, 200), now=1000)
    assert window.sums(now=1000).totals.acceptance_length == 3
    assert window.baseline(now=1000) is None
    window.add(sums(100, 50), now=1400)
    assert window.sums(now=1400).totals.acceptance_length == 1.5
    assert window.baseline(now=1400) == 3


def test_the_baseline_weighs_the_recent_past_more():
    window = SlidingWindow(span_s=300, half_life_s=600)
    window.add(sums(100, 200), now=0)
    window.add(sums(100, 0), now=600)
    want = 1 + (200 * 0.5) / (100 * 0.5 + 100)
    assert window.baseline(now=2000) == pytest.approx(want)


def test_history_tells_how_long_ago():
    window = SlidingWindow(span_s=300, half_life_s=600)
    window.add(sums(1, 1), now=1000)
    window.add(sums(1, 1), now=1025)
    assert [age for age, _ in window.history(now=1030)] == [30, 10]
