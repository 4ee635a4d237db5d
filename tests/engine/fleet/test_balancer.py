"""The balancer's memory: loads by token, prompts by block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.fleet.routing import (
    LoadBalancer,
    LoadCharge,
    OutputEstimate,
    PrefixMemory,
    WorkerLoad,
    hash_blocks,
)
from eaglegate.engine.fleet.types import RoutingReason, RoutingSettings
from eaglegate.engine.types import EngineRequest, Sampling

RULES = RoutingSettings(block=4, key_blocks=2, memory_blocks=64, slack=1e9)


def ask(prompt, name: str = "r", tokens: int = 10, **fields) -> EngineRequest:
    return EngineRequest(name, tuple(prompt), Sampling(max_tokens=tokens), **fields)


def balancer(*names: str, rules: RoutingSettings = RULES) -> LoadBalancer:
    made = LoadBalancer(rules)
    for name in names:
        made.add_worker(name)
    return made


def test_a_chain_names_whole_blocks_by_all_that_is_before_them():
    one, two = hash_blocks(range(10), 4, 99), hash_blocks([*range(4), 9, 9, 9, 9], 4, 99)
    assert len(one) == len(two) == 2
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert hash_blocks(range(40), 4, 3) == hash_blocks(range(12), 4, 99)
    assert hash_blocks(range(3), 4, 99) == []


def test_salted_prompts_share_nothing():
    assert not set(hash_blocks(range(8), 4, 9, "a")) & set(hash_blocks(range(8), 4, 9, "b"))


def test_a_memory_forgets_what_was_used_least_and_ends_first():
    memory = PrefixMemory(3)
    memory.add([b"a", b"b"])
    memory.add([b"x", b"y"])
    assert memory.count_known([b"x", b"y"]) == 2
    assert memory.count_known([b"a", b"b"]) == 1, "the end of the older one went first"
    assert len(memory) == 3


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=30))
def test_a_memory_is_bounded_and_knows_what_it_met_last(prompts):
    memory = PrefixMemory(8)
    for prompt in prompts:
        names = [bytes(prompt[: at + 1]) for at in range(len(prompt))]
        memory.add(names)
        assert memory.count_known(names) == len(names)
        assert len(memory) <= 8


def test_a_conversation_that_grows_stays_and_weighs_what_is_new():
    fleet = balancer("a", "b", "c")
    first = fleet.assign(ask(range(8)), ["a", "b", "c"])
    assert (first.reason, first.known_tokens) == (RoutingReason.HASH, 0)
    second = fleet.assign(ask(range(16)), ["a", "b", "c"])
    assert (second.reason, second.name, second.known_tokens) == (
        RoutingReason.PREFIX,
        first.name,
        8,
    )
    assert fleet.load(first.name).tokens == (8 + 10) + (16 - 8 + 10)
    assert fleet.load(first.name).requests == 2


def test_sessions_are_told_apart_by_name_before_prompt():
    fleet = balancer("a", "b", "c", "d")
    places = {
        fleet.assign(ask(range(16), affinity=f"session {i}"), ["a", "b", "c", "d"]).name
        for i in range(40)
    }
    assert places == {"a", "b", "c", "d"}


def test_two_gateways_agree_where_a_new_prompt_goes():
    names = ["a", "b", "c", "d"]
    for at in range(20):
        prompt = range(at, at + 12)
        ours = balancer(*names).assign(ask(prompt, "x"), names)
        assert ours.name == balancer(*names).assign(ask(prompt, "y"), names[::-1]).name


def test_a_worker_that_comes_back_has_forgotten_and_still_carries_what_runs():
    fleet = balancer("a")
    fleet.assign(ask(range(8)), ["a"])
    fleet.add_worker("a")
    again = fleet.assign(ask(range(8)), ["a"])
    assert again.known_tokens == 0
    assert fleet.load("a").requests == 2


def test_a_charge_shrinks_with_every_token_and_leaves_nothing():
    load = WorkerLoad()
    charge = LoadCharge(load, 100, 10, 1.0)
    other = LoadCharge(load, 7, 1, 1.0)
    assert load.tokens == 118
    charge.record_tokens(1)
    assert load.tokens == 9 + 8, "its prompt is prefilled with the first token"
    charge.record_tokens(5)
    assert load.tokens == 4 + 8
    charge.record_tokens(50)
    assert load.tokens == 1 + 8, "it still makes its next one"
    charge.settle()
    assert (load.tokens, load.requests) == (8, 1)
    other.settle()
    assert (load.tokens, load.requests) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 500), st.lists(st.integers(0, 40), max_size=5))))
def test_loads_end_at_nothing(requests):
    load = WorkerLoad()
    charges = [LoadCharge(load, prefill, 20, 1.5) for prefill, _ in requests]
    for charge, (_, made) in zip(charges, requests, strict=True):
        for tokens in made:
            charge.record_tokens(tokens)
            assert load.tokens >= 0
    for charge in charges:
        charge.settle()
    assert (load.tokens, load.requests) == (0, 0)


def test_expectations_follow_what_was_seen_within_the_requests_limit():
    expected = OutputEstimate(first=100, forget=0.5)
    assert (expected.estimate(30), expected.estimate(4000)) == (30, 100)
    for _ in range(20):
        expected.learn(600)
    assert expected.estimate(4000) == pytest.approx(600, rel=0.01)


def test_a_long_answer_weighs_as_its_weight_says():
    fleet = balancer("a", rules=replace(RULES, output_weight=3.0))
    fleet.assign(ask(range(8), tokens=10), ["a"])
    assert fleet.load("a").tokens == 8 + 30
