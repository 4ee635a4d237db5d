"""Turns, shares and who gives way: the arithmetic of fair queueing, one rule at a time."""

from __future__ import annotations

import pytest

from eaglegate.server.access.admission import Admission, AdmissionTicket
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import FairQueue, Flow, Priority
from tests.server.access.test_admission import Clock

NORMAL, HIGH, LOW = Priority.NORMAL, Priority.HIGH, Priority.LOW


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def order(clock: Clock) -> FairQueue:
    return FairQueue(clock)


def add_flow(
    order: FairQueue, name: str, *, weight: float = 1, priority: Priority = NORMAL, queued: int = 0
) -> Flow:
    flow = order.flow(priority, name, weight)
    flow.seen = 1000.0
    for at in range(queued):
        flow.queued[place_of(flow, entered=at)] = None
    return flow


def place_of(flow: Flow, tokens: int = 10, entered: float = 0.0) -> AdmissionTicket:
    return AdmissionTicket(Admission(), Requester(), flow, entered, sequences=1, tokens=tokens)


# -- which keys share


def test_idle_keys_are_forgotten_when_one_comes(order, clock):
    add_flow(order, "a").weight = 7
    clock.now += 60
    add_flow(order, "b")
    assert [flow.name for flow in order] == ["b"]


def test_places_are_shared_by_weight_within_a_class(order):
    light, heavy = add_flow(order, "light", weight=1), add_flow(order, "heavy", weight=3)
    other = add_flow(order, "other", priority=LOW, weight=5)
    assert order.compute_shares(10) == {light: 2.5, heavy: 7.5, other: 10}
    assert order.compute_shares(2)[light] == 1, "at least one"


# -- whose turn


def test_turns_follow_place_seconds_over_weight(order):
    light, heavy = add_flow(order, "light", weight=1), add_flow(order, "heavy", weight=2)
    for flow in (light, heavy):
        order.queue(flow, place_of(flow))
        order.queue(flow, place_of(flow))
        assert order.charge(flow, sequences=2, typical_s=3) == 6
    assert (light.charged, heavy.charged) == (6, 3)
    assert order.list_by_turn() == [heavy, light]


def test_the_real_cost_of_a_request_replaces_the_expected_cost(order):
    flow = add_flow(order, "a", weight=2)
    expected = order.charge(flow, sequences=2, typical_s=4)
    order.settle(flow, expected, sequences=2, seconds=10)
    assert flow.charged == 2 * 10 / 2


def test_a_key_is_expected_to_hold_places_as_long_as_it_did(order):
    flow = add_flow(order, "a")
    order.settle(flow, 0.0, sequences=1, seconds=10)
    assert order.charge(flow, sequences=1, typical_s=4) == 10
    order.settle(flow, 10.0, sequences=1, seconds=20)
    assert order.charge(flow, sequences=1, typical_s=4) == pytest.approx(12), "a fifth of the way"


def test_a_key_that_comes_late_starts_level(order):
    early = add_flow(order, "early")
    for _ in range(3):
        order.queue(early, place_of(early))
        order.charge(early, sequences=1, typical_s=5)
    late = add_flow(order, "late")
    order.queue(late, place_of(late, entered=1))
    assert late.charged == 10, "the virtual time when the last request was admitted"
    ahead = add_flow(order, "ahead")
    ahead.charged = 50.0
    order.queue(ahead, place_of(ahead))
    assert ahead.charged == 50, "what it had before stays charged"
    order.charge(late, sequences=1, typical_s=1)
    another = add_flow(order, "another")
    order.queue(another, place_of(another))
    assert another.charged == 10


def test_a_key_that_waits_keeps_its_turn_when_more_of_it_comes(order):
    waiting, other = add_flow(order, "waiting"), add_flow(order, "other")
    order.queue(waiting, place_of(waiting))
    for _ in range(3):
        order.charge(other, sequences=1, typical_s=5)
    order.queue(waiting, place_of(waiting))
    assert waiting.charged == 0


# -- who is ahead, who gives way


def test_as_many_of_another_key_are_ahead_as_it_is_due(order):
    flow = add_flow(order, "mine", weight=2, queued=3)
    assert order.count_ahead(flow) == 3
    add_flow(order, "equal", weight=2, queued=9)
    assert order.count_ahead(flow) == 3 + 4
    add_flow(order, "light", weight=1, queued=9)
    assert order.count_ahead(flow) == 3 + 4 + 2
    add_flow(order, "few", weight=1, queued=1)
    assert order.count_ahead(flow) == 3 + 4 + 2 + 1


def test_all_of_a_higher_class_are_ahead_and_none_of_a_lower(order):
    flow = add_flow(order, "mine")
    add_flow(order, "high", priority=HIGH, queued=9)
    assert order.count_ahead(flow) == 9
    add_flow(order, "low", priority=LOW, queued=9)
    assert order.count_ahead(flow) == 9


def rival_of(order: FairQueue, flow: Flow, own: float) -> Flow | None:
    return order.find_rival(flow, lambda other: other.backlog, own)


def test_the_key_with_the_most_for_its_weight_gives_way(order):
    flow = add_flow(order, "mine")
    light = add_flow(order, "light", weight=1, queued=3)
    add_flow(order, "heavy", weight=4, queued=8)
    assert rival_of(order, flow, own=1) is light
    assert rival_of(order, flow, own=3) is None, "equals do not displace each other"


def test_the_lowest_class_that_waits_gives_way_first(order):
    flow = add_flow(order, "mine", priority=HIGH)
    add_flow(order, "idle", priority=LOW)
    normal = add_flow(order, "normal", queued=1)
    assert rival_of(order, flow, own=9) is normal
    low = add_flow(order, "low", priority=LOW, queued=1)
    assert rival_of(order, flow, own=9) is low
    assert rival_of(order, low, own=0) is None, "nor does a key displace its own"
