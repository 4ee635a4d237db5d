"""Steps are counted by the API key that asked for them, where an operator has named keys."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.events import Ending, RequestFacts
from eaglegate.engine.types import DecodeStep, Step
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.observation import RequestObservation
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import ContentDelta


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(GROUPS, TelemetrySettings(models=("m",), keys=2), CollectorRegistry())


def begin(telemetry: Telemetry, key: str | None) -> RequestObservation:
    now = telemetry.clock()
    facts = RequestFacts(
        "r", "chat", "m", "default", "chat", "", True, 5, ("r-0",), now, now, key=key
    )
    observation = telemetry.begin(facts)
    assert isinstance(observation, RequestObservation)
    return observation


def add_steps(observation: RequestObservation, steps: int) -> None:
    """Each step drafts three tokens, of which one is accepted; the newest step is settled last."""
    for _ in range(steps):
        observation.sequences["r-0"].add_step(Step((1, 2), decode=(DecodeStep(3, 1, 2),)))
        observation.choice("r-0")(ContentDelta("x"))


def ask(telemetry: Telemetry, key: str | None, steps: int) -> None:
    observation = begin(telemetry, key)
    add_steps(observation, steps)
    observation.end(Ending.COMPLETED)


def read(telemetry: Telemetry, what: str) -> dict[str, float]:
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
    ask(telemetry, "chat", 4)
    ask(telemetry, "nightly", 6)
    assert read(telemetry, "verify_steps") == {"chat": 4, "nightly": 6}
    assert read(telemetry, "accepted_tokens") == {"chat": 4, "nightly": 6}
    assert read(telemetry, "drafted_tokens") == {"chat": 12, "nightly": 18}
    assert read(telemetry, "wasted_tokens") == {"chat": 8, "nightly": 12}
    rows = summarize_speculation(telemetry)["slices"]["key"]
    assert set(rows) == {"chat", "nightly"}
    assert (rows["chat"]["mean_depth"], rows["nightly"]["wasted_tokens"]) == (3, 12)


def test_only_the_first_named_keys_have_series(telemetry: Telemetry) -> None:
    telemetry.name_keys(["chat", "nightly", "third"])
    for key in ("chat", "third", "key-0a1b2c3d"):
        ask(telemetry, key, 1)
    assert read(telemetry, "verify_steps") == {"chat": 1, "other": 2}


@pytest.mark.parametrize("key", [None, "key-0a1b2c3d"])
def test_without_named_keys_there_are_no_series(telemetry: Telemetry, key: str | None) -> None:
    ask(telemetry, key, 1)
    assert read(telemetry, "verify_steps") == {}
    assert summarize_speculation(telemetry)["slices"]["key"] == {}


def test_a_key_that_is_gone_loses_its_series_in_mid_answer(telemetry: Telemetry) -> None:
    telemetry.name_keys(["chat", "nightly"])
    ask(telemetry, "nightly", 2)
    observation = begin(telemetry, "chat")
    add_steps(observation, 5)
    telemetry.name_keys(["nightly"])
    assert read(telemetry, "drafted_tokens") == {"nightly": 6}
    assert set(summarize_speculation(telemetry)["slices"]["key"]) == {"nightly"}
    add_steps(observation, 3)
    observation.end(Ending.COMPLETED)
    assert read(telemetry, "verify_steps") == {"nightly": 2, "other": 4}
    assert read(telemetry, "wasted_tokens") == {"nightly": 4, "other": 8}
