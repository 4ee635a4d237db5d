"""Steps and requests are counted by draft and by key, and templates by rank; few of each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from eaglegate.engine.events import Ending, Finish, Usage
from eaglegate.engine.speculation.drafts.versions import DraftListener, DraftSwap, DraftVersion
from eaglegate.observability.facts import RequestEnded
from eaglegate.observability.labels import NO_TEMPLATE, OTHER, TopTemplates
from eaglegate.observability.middleware import make_generation_fields
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from tests.observability.scene import add_steps, ask, begin, make_telemetry, read


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


@pytest.fixture
def telemetry() -> Telemetry:
    return make_telemetry(keys=2, drafts=2)


@pytest.fixture
def drafts(telemetry: Telemetry) -> Drafts:
    made = Drafts()
    telemetry.watch_drafts(made)  # type: ignore[arg-type]
    return made


def count(telemetry: Telemetry, draft: str) -> float | None:
    telemetry.settle()
    return read(telemetry, "draft_verify_steps_total", model="m", lane="default", draft=draft)


def test_a_request_over_a_swap_counts_for_both_drafts(telemetry: Telemetry, drafts: Drafts) -> None:
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


def test_swaps_and_their_pauses_are_counted(telemetry: Telemetry, drafts: Drafts) -> None:
    drafts.swap("b" * 12, "trial")
    assert read(telemetry, "draft_swaps_total", kind="trial") == 1
    assert read(telemetry, "draft_swap_pause_seconds_total", kind="trial") == 0.25


def test_only_the_last_drafts_keep_their_series(telemetry: Telemetry, drafts: Drafts) -> None:
    for name in "bcd":
        ask(telemetry, 3)
        telemetry.settle()
        drafts.swap(name * 12)
    counts = {name: count(telemetry, name * 12) for name in "abc"}
    assert counts == {"a": None, "b": None, "c": 3}


def test_ended_requests_and_steps_are_handed_on(telemetry: Telemetry, drafts: Drafts) -> None:
    seen: list[Any] = []
    unsubscribe = telemetry.facts.subscribe(RequestEnded, lambda fact: seen.append(fact.record))
    ask(telemetry, 3)
    assert telemetry.total_of("a" * 12).verify_steps == 3
    assert [record.drafts for record in seen] == [("a" * 12,)]
    unsubscribe()
    begin(telemetry).end(Ending.COMPLETED)
    assert len(seen) == 1


def read_keys(telemetry: Telemetry, what: str) -> dict[str, float]:
    """Read a counter by key."""
    telemetry.settle()
    return {
        sample.labels["key"]: sample.value
        for family in telemetry.registry.collect()
        for sample in family.samples
        if sample.name == f"eaglegate_key_{what}_total"
    }


def test_acceptance_depth_and_waste_of_each_key_are_counted(telemetry: Telemetry) -> None:
    telemetry.name_keys(["chat", "nightly"])
    ask(telemetry, 4, key="chat")
    ask(telemetry, 6, key="nightly")
    assert read_keys(telemetry, "verify_steps") == {"chat": 4, "nightly": 6}
    assert read_keys(telemetry, "accepted_tokens") == {"chat": 4, "nightly": 6}
    assert read_keys(telemetry, "drafted_tokens") == {"chat": 12, "nightly": 18}
    assert read_keys(telemetry, "wasted_tokens") == {"chat": 8, "nightly": 12}
    rows = summarize_speculation(telemetry)["slices"]["key"]
    assert set(rows) == {"chat", "nightly"}
    assert (rows["chat"]["mean_depth"], rows["nightly"]["wasted_tokens"]) == (3, 12)


def test_only_the_first_named_keys_have_series(telemetry: Telemetry) -> None:
    telemetry.name_keys(["chat", "nightly", "third"])
    for key in ("chat", "third", "key-0a1b2c3d"):
        ask(telemetry, 1, key=key)
    assert read_keys(telemetry, "verify_steps") == {"chat": 1, "other": 2}


@pytest.mark.parametrize("key", [None, "key-0a1b2c3d"])
def test_without_named_keys_there_are_no_series(telemetry: Telemetry, key: str | None) -> None:
    ask(telemetry, 1, key=key)
    assert read_keys(telemetry, "verify_steps") == {}
    assert summarize_speculation(telemetry)["slices"]["key"] == {}


def test_a_key_that_is_gone_loses_its_series_in_mid_answer(telemetry: Telemetry) -> None:
    telemetry.name_keys(["chat", "nightly"])
    ask(telemetry, 2, key="nightly")
    observation = begin(telemetry, key="chat")
    add_steps(observation, 5)
    telemetry.name_keys(["nightly"])
    assert read_keys(telemetry, "drafted_tokens") == {"nightly": 6}
    assert set(summarize_speculation(telemetry)["slices"]["key"]) == {"nightly"}
    add_steps(observation, 3)
    observation.end(Ending.COMPLETED)
    assert read_keys(telemetry, "verify_steps") == {"nightly": 2, "other": 4}
    assert read_keys(telemetry, "wasted_tokens") == {"nightly": 4, "other": 8}


def test_the_first_templates_are_named_and_the_rest_is_other():
    top = TopTemplates(2)
    assert [top.name(x)[0] for x in ("a", "b", "c", "", "a")] == ["a", "b", OTHER, NO_TEMPLATE, "a"]


def test_a_template_seen_more_often_takes_the_place_of_the_rarest():
    top = TopTemplates(2)
    for fingerprint in ("a", "a", "b", "c"):
        top.name(fingerprint)
    assert top.name("c") == ("c", "b")
    assert top.name("b")[0] == OTHER


def test_a_flood_of_one_time_templates_displaces_nothing_seen_twice():
    top = TopTemplates(3)
    for _ in range(2):
        for fingerprint in ("a", "b", "c"):
            top.name(fingerprint)
    names = Counter(top.name(f"{at:08x}")[0] for at in range(10_000))
    assert names == {OTHER: 10_000}
    assert top.name("a")[0] == "a"
