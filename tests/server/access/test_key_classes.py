"""Classes of API keys: from the flag to the engine's requests."""

from __future__ import annotations

import pytest

from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.key_classes import assign_classes
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.errors import ConfigError
from tests.server.conftest import Lab, make_key

RING = KeyRing(tuple(map(make_key, ("chat", "nightly", "other"))))


def test_keys_get_the_classes_that_are_given() -> None:
    ring = assign_classes(RING, ["chat=latency:25.5ms", "nightly=batch:0.5"])
    chat, nightly, other = ring.keys
    assert (chat.latency_ms, chat.priority) == (25.5, Priority.HIGH)
    assert (nightly.latency_ms, nightly.step_weight) == (None, 0.5)
    assert nightly.priority is Priority.NORMAL
    assert other == RING.keys[2]
    assert assign_classes(RING, ["chat=latency"]).keys[0].latency_ms == 0
    assert assign_classes(RING, []) == RING


@pytest.mark.parametrize("priority", Priority)
def test_a_latency_class_lowers_no_priority(priority: Priority) -> None:
    """An operator's key stays ahead of others."""
    ring = KeyRing((make_key("chat", priority=priority),))
    (chat,) = assign_classes(ring, ["chat=latency"]).keys
    assert chat.priority is min(priority, Priority.HIGH)
    assert chat.priority <= priority


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["chat"], "write NAME=latency"),
        (["chat=fast"], "write NAME=latency"),
        (["chat=latency:25"], "25ms|30ms"),
        (["chat=batch:0"], "between 0.01 and 1000"),
        (["nobody=batch"], "no API key 'nobody'; the keys are chat, nightly, other"),
        (["chat=batch", "chat=latency"], "'chat=latency': the API key 'chat' has two classes"),
    ],
)
def test_a_wrong_class_is_refused_with_the_rule(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        assign_classes(RING, given)


@pytest.mark.parametrize(
    ("name", "latency_ms", "weight"),
    [("chat", 25.0, 1.0), ("nightly", None, 0.5), ("other", None, 1.0)],
)
async def test_the_engine_is_told_the_class(
    lab: Lab, name: str, latency_ms: float | None, weight: float
) -> None:
    lab.gateway.keys = assign_classes(RING, ["chat=latency:25ms", "nightly=batch:0.5"])
    lab.says("x")
    assert (await lab.chat(key=name)).status == 200
    request = lab.engine.requests[-1]
    assert (request.latency_ms, request.weight, request.tenant) == (latency_ms, weight, name)
