"""An error of a subscriber harms nobody else, and shows."""

from __future__ import annotations

import logging

import pytest

from eaglegate.observability.facts import FactBus, StorageFailed
from eaglegate.observability.telemetry import Telemetry
from tests.observability.scene import read


def fail(_: StorageFailed) -> None:
    raise ValueError


def test_a_subscriber_that_raises_is_counted_and_others_receive(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[StorageFailed] = []
    for receive in (fail, received.append):
        telemetry.facts.subscribe(StorageFailed, receive)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            telemetry.facts.publish(StorageFailed())
    assert len(received) == 3
    assert len([record for record in caplog.records if "fail" in record.getMessage()]) == 1
    assert read(telemetry, "fact_failures_total", subscriber=f"{__name__}.fail") == 3


def test_a_subscriber_that_ends_during_a_fact_keeps_no_other_from_it() -> None:
    facts, received = FactBus(), []

    def receive_once(fact: StorageFailed) -> None:
        received.append("once")
        end()

    end = facts.subscribe(StorageFailed, receive_once)
    facts.subscribe(StorageFailed, lambda _: received.append("always"))
    for _ in range(2):
        facts.publish(StorageFailed())
    assert received == ["once", "always", "always"]
