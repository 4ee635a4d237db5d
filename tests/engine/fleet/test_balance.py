"""The rules of balancing, one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.fleet.routing import (
    RoutingCandidate,
    RoutingRequest,
    WorkerReservations,
    choose_least_loaded,
    choose_worker,
    compute_bound,
    order_by_hash,
)
from eaglegate.engine.fleet.types import RoutingReason, RoutingSettings
from eaglegate.engine.types import Arm

RULES = RoutingSettings(epsilon=0.25, slack=0.0)
NAMES = [f"worker-{i}" for i in range(8)]


def keys(number: int) -> list[bytes]:
    return [f"key {i}".encode() for i in range(number)]


def test_rendezvous_spreads_keys_evenly():
    firsts = Counter(order_by_hash(key, NAMES)[0] for key in keys(8000))
    assert set(firsts) == set(NAMES)
    assert all(850 < count < 1150 for count in firsts.values())


def test_rendezvous_does_not_mind_the_order_of_names():
    for key in keys(50):
        assert order_by_hash(key, NAMES) == order_by_hash(key, NAMES[::-1])


def test_a_worker_that_leaves_moves_its_own_keys_alone():
    gone = NAMES[3]
    for key in keys(500):
        before = order_by_hash(key, NAMES)
        assert order_by_hash(key, [name for name in NAMES if name != gone]) == [
            name for name in before if name != gone
        ]


def test_a_worker_that_joins_takes_its_share_and_moves_nothing_else():
    moved = 0
    for key in keys(4000):
        before, after = order_by_hash(key, NAMES)[0], order_by_hash(key, [*NAMES, "new"])[0]
        assert after in (before, "new")
        moved += after == "new"
    assert moved / 4000 == pytest.approx(1 / 9, rel=0.2)


loads = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


@given(loads, st.floats(0, 1e5), st.binary(min_size=1, max_size=8))
def test_nobody_over_the_bound_is_given_more(loads, cost, key):
    candidates = [RoutingCandidate(f"w{i}", load) for i, load in enumerate(loads)]
    chosen, why = choose_worker(candidates, RoutingRequest(b"x", cost, key=key), RULES)
    assert chosen.load <= compute_bound(loads, cost, RULES)
    first = order_by_hash(key, [c.name for c in candidates])[0]
    assert (why is RoutingReason.HASH) == (chosen.name == first)


def test_loads_stay_within_the_bound_when_every_request_has_the_same_key():
    held = dict.fromkeys(NAMES, 0.0)
    chance = random.Random(5)
    biggest = 0.0
    for number in range(3000):
        cost = chance.uniform(100, 2000)
        biggest = max(biggest, cost)
        candidates = [RoutingCandidate(name, load) for name, load in held.items()]
        wish = RoutingRequest(str(number).encode(), cost, session="the only one")
        chosen, _ = choose_worker(candidates, wish, RULES)
        held[chosen.name] += cost
        mean = sum(held.values()) / len(held)
        assert max(held.values()) <= (1 + RULES.epsilon) * mean + biggest


def test_a_session_stays_until_its_worker_is_over_the_bound_and_comes_back():
    home = choose_worker(
        [RoutingCandidate(n, 0.0) for n in NAMES], RoutingRequest(b"1", 10, session="s"), RULES
    )[0].name
    busy = [RoutingCandidate(n, 100.0 if n == home else 0.0) for n in NAMES]
    elsewhere, why = choose_worker(busy, RoutingRequest(b"2", 10, session="s"), RULES)
    assert (why, elsewhere.name == home) == (RoutingReason.SPILLED, False)
    back, why = choose_worker(
        [RoutingCandidate(n, 7.0) for n in NAMES], RoutingRequest(b"3", 10, session="s"), RULES
    )
    assert (why, back.name) == (RoutingReason.SESSION, home)


def test_a_little_load_moves_nobody():
    lazy = RoutingSettings(epsilon=0.25, slack=500.0)
    home = choose_worker(
        [RoutingCandidate(n, 0.0) for n in NAMES], RoutingRequest(b"1", 10, session="s"), lazy
    )[0].name
    busy = [RoutingCandidate(n, 400.0 if n == home else 0.0) for n in NAMES]
    assert choose_worker(busy, RoutingRequest(b"2", 10, session="s"), lazy)[0].name == home


def test_a_prompt_goes_where_most_of_it_is_known():
    candidates = [
        RoutingCandidate("a", 5.0, 2),
        RoutingCandidate("b", 5.0, 9),
        RoutingCandidate("c", 0.0, 0),
    ]
    chosen, why = choose_worker(candidates, RoutingRequest(b"1", 50, key=b"k"), RULES)
    assert (chosen.name, why) == ("b", RoutingReason.PREFIX)


def test_among_those_who_know_too_much_to_do_the_next_best_is_taken():
    candidates = [
        RoutingCandidate("a", 1.0, 2),
        RoutingCandidate("b", 90.0, 9),
        RoutingCandidate("c", 0.0, 0),
    ]
    chosen, why = choose_worker(candidates, RoutingRequest(b"1", 10, key=b"k"), RULES)
    assert (chosen.name, why) == ("a", RoutingReason.SPILLED)


def test_without_affinity_the_least_loaded_is_taken_and_ties_are_spread():
    some = [RoutingCandidate("a", 3.0), RoutingCandidate("b", 1.0), RoutingCandidate("c", 1.0)]
    taken = Counter(choose_worker(some, RoutingRequest(key, 1), RULES)[0].name for key in keys(400))
    assert taken["a"] == 0
    assert min(taken["b"], taken["c"]) > 150
    assert choose_least_loaded(some, b"x") == choose_least_loaded(some[::-1], b"x")


SELECTED = [
    (None, set(), None, "abc"),
    ("b", set(), Arm.CANDIDATE, "b"),
    ("b", set(), Arm.CONTROL, "ac"),
    ("b", set(), None, "ac"),
    (None, {"b"}, None, "ac"),
    ("b", {"c"}, Arm.CONTROL, "a"),
    ("z", set(), Arm.CANDIDATE, "abc"),
    ("b", {"a", "c"}, Arm.CONTROL, "b"),
    (None, set("abc"), None, "abc"),
]


@pytest.mark.parametrize(("candidate", "held", "arm", "want"), SELECTED)
def test_a_canary_keeps_requests_from_workers(candidate, held, arm, want):
    """A canary never keeps requests from all workers."""
    assert WorkerReservations(candidate, held).select("abc", arm) == list(want)
