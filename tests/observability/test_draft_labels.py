"""Steps and requests are counted by the draft that served them."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from eaglegate.engine.events import Ending, Finish, RequestFacts, Usage
from eaglegate.engine.speculation.draft_versions import DraftListener, DraftSwap, DraftVersion
from eaglegate.engine.types import DecodeStep, Step
from eaglegate.observability.facts import RequestEnded
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.middleware import make_generation_fields
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import ContentDelta


class Drafts:
    """Announces swaps, as ``DraftManager`` does."""

    def __init__(self) -> None:
        self.serving: DraftVersion | None = DraftVersion("a" * 12, "/a", "/a")
        self.listener: DraftListener | None = None

    def watch(self, listener: DraftListener) -> None:
        self.listener = listener

    def swap(self, name: str, kind: str = "swap") -> None:
        before, self.serving = self.serving, DraftVersion(name, "/b", "/b")
        assert before is not None
        assert self.listener is not None
        self.listener(self.serving, DraftSwap(0.0, kind, before.fingerprint, name, 0.25))


def make_telemetry(drafts: Drafts) -> Telemetry:
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",), drafts=2), CollectorRegistry())
    telemetry.watch_drafts(drafts)  # type: ignore[arg-type]
    return telemetry


def count(telemetry: Telemetry, draft: str, name: str = "draft_verify_steps_total") -> float | None:
    telemetry.settle()
    labels = {"model": "m", "lane": "default", "draft": draft}
    return telemetry.registry.get_sample_value("eaglegate_" + name, labels)


def begin(telemetry: Telemetry):
    now = telemetry.clock()
    facts = RequestFacts(
        "r", "chat", "m", "default", "chat", "", True, 5, ("r-0",), arrived=now, admitted=now
    )
    return telemetry.begin(facts)


def add_steps(observation, verify_steps: int) -> None:
    """Each step's event follows it; the newest step is not settled yet."""
    for _ in range(verify_steps):
        observation.sequences["r-0"].add_step(Step((1, 2), decode=(DecodeStep(3, 1, 2),)))
        observation.choice("r-0")(ContentDelta("x"))


def test_a_request_over_a_swap_counts_for_both_drafts() -> None:
    drafts = Drafts()
    telemetry = make_telemetry(drafts)
    observation = begin(telemetry)
    add_steps(observation, 6)
    drafts.swap("b" * 12)
    add_steps(observation, 4)
    observation.choice("r-0")(Finish("stop", Usage(5, 20)))
    observation.end(Ending.COMPLETED)
    counted = [count(telemetry, "a" * 12), count(telemetry, "b" * 12)]
    assert counted == [5, 5], "the newest step before the swap counts for the draft after it"
    fields = make_generation_fields(observation.record)
    assert fields["drafts"] == ["a" * 12, "b" * 12]
    assert summarize_speculation(telemetry)["draft"] == "b" * 12


def test_swaps_and_their_pauses_are_counted() -> None:
    drafts = Drafts()
    telemetry = make_telemetry(drafts)
    drafts.swap("b" * 12, "trial")
    sample = telemetry.registry.get_sample_value
    assert sample("eaglegate_draft_swaps_total", {"kind": "trial"}) == 1
    assert sample("eaglegate_draft_swap_pause_seconds_total", {"kind": "trial"}) == 0.25


def test_only_the_last_drafts_keep_their_series() -> None:
    drafts = Drafts()
    telemetry = make_telemetry(drafts)
    for name in "bcd":
        observation = begin(telemetry)
        add_steps(observation, 3)
        observation.end(Ending.COMPLETED)
        telemetry.settle()
        drafts.swap(name * 12)
    found = {name: count(telemetry, name * 12) for name in "abcd"}
    assert (found["a"], found["b"]) == (None, None)
    assert found["c"] == 3


def test_ended_requests_and_steps_are_handed_on() -> None:
    drafts = Drafts()
    telemetry = make_telemetry(drafts)
    seen: list[Any] = []
    unsubscribe = telemetry.facts.subscribe(RequestEnded, lambda fact: seen.append(fact.record))
    observation = begin(telemetry)
    add_steps(observation, 3)
    observation.end(Ending.COMPLETED)
    assert telemetry.total_of("a" * 12).verify_steps == 3
    assert [record.drafts for record in seen] == [("a" * 12,)]
    unsubscribe()
    begin(telemetry).end(Ending.COMPLETED)
    assert len(seen) == 1
