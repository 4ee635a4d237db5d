"""Bytes, tokens and turns are charged before the work, and shared among keys."""

from __future__ import annotations

import asyncio
import threading

import pytest

from eaglegate.server.access.budget import (
    BYTES_PER_TOKEN,
    RequestBudget,
    RequestCharge,
)
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import TooManyRequests


def test_bytes_are_bounded_for_all_and_for_each():
    budget = RequestBudget(held_bytes=100)
    first, second, third = budget.open("a"), budget.open("a"), budget.open("b")
    first.hold(40)
    with pytest.raises(TooManyRequests, match="100 for all clients and 50 for this one"):
        second.hold(20)
    third.hold(50)
    first.close()
    second.hold(50)
    for charge in (first, second, third):
        charge.close()
    assert (budget.held, dict(budget.bodies._of_keys)) == (0, {})


def test_a_gateway_holds_96_mebibytes_of_which_a_key_has_half():
    budget = RequestBudget()
    first, second, third = budget.open("a"), budget.open("b"), budget.open("c")
    for charge in (first, second):
        charge.hold(48 << 20)
    for charge in (first, third):
        with pytest.raises(TooManyRequests) as refused:
            charge.hold(1)
        assert refused.value.retry_after_s == 2
    assert (first.num_bytes, third.num_bytes) == (48 << 20, 0), "what is refused is not held"


def test_the_last_byte_of_a_key_counts_in_its_share():
    budget = RequestBudget(held_bytes=100)
    first, second, third = (budget.open("a") for _ in range(3))
    first.hold(1)
    second.hold(49)
    second.close()
    with pytest.raises(TooManyRequests):
        third.hold(50)


def test_requests_without_a_charge_are_not_bounded():
    Caller().charge.hold(1 << 40)


def test_bytes_of_a_background_run_are_held_until_it_is_over_too():
    budget = RequestBudget(held_bytes=100)
    charge = budget.open("a")
    charge.hold(20)
    charge.extend()
    charge.close()
    assert budget.held == 20
    charge.close()
    assert budget.held == 0


@pytest.mark.parametrize(("requests", "left"), [(60, 5), (120, 10), (6, 0)])
def test_a_quota_that_replaces_another_continues_with_its_share(requests, left):
    before = KeyQuota("a", requests=60, tokens=100, clock=lambda: 0.0)
    for _ in range(55):
        before.take()
    after = KeyQuota("a", requests=requests, tokens=100, clock=lambda: 0.0)
    after.resume(before)
    for _ in range(left):
        after.take()
    with pytest.raises(TooManyRequests, match="requests per minute"):
        after.take()


def test_a_quota_may_gain_a_bound_that_the_one_before_had_not():
    before = KeyQuota("a", tokens=100, clock=lambda: 0.0)
    before.pay(150)
    after = KeyQuota("a", requests=1, clock=lambda: 0.0)
    after.resume(before)
    after.take()
    with pytest.raises(TooManyRequests, match="requests per minute"):
        after.take()


def test_tokens_that_are_owed_stay_owed_when_keys_are_read_again():
    before = KeyQuota("a", tokens=100, clock=lambda: 0.0)
    before.pay(150)
    after = KeyQuota("a", tokens=100, clock=lambda: 0.0)
    after.resume(before)
    after.pay(-50)
    with pytest.raises(TooManyRequests, match="tokens per minute"):
        after.take()


def test_without_keys_there_is_one_share():
    charge = RequestBudget(held_bytes=100).open()
    charge.hold(100)
    with pytest.raises(TooManyRequests):
        charge.hold(1)


def open_charge(tokens: int, num_bytes: int = 0) -> tuple[KeyQuota, RequestCharge]:
    """A quota of so many tokens a minute, and the charge of a request that was read."""
    quota = KeyQuota("a", tokens=tokens, clock=lambda: 0.0)
    charge = RequestBudget().open("a", quota)
    charge.hold(num_bytes)
    charge.estimate()
    return quota, charge


def level(quota: KeyQuota) -> float:
    assert quota._tokens is not None
    return quota._tokens.level


def test_the_estimate_is_paid_before_and_what_was_used_after():
    quota, charge = open_charge(100, 100 * BYTES_PER_TOKEN)
    with pytest.raises(TooManyRequests, match="tokens per minute"):
        quota.take()
    charge.begin_tokenizing()
    charge.reserve(20, 30)
    assert level(quota) == 50
    charge.settle(20, 3)
    assert level(quota) == 77
    charge.close()
    assert level(quota) == 77


@pytest.mark.parametrize(("come_to", "left"), [("", 100), ("tokenizing", 60), ("reserving", 60)])
def test_refused_requests_pay_the_estimate_once_their_prompt_is_tokenized(come_to, left):
    quota, charge = open_charge(100, 40 * BYTES_PER_TOKEN)
    if come_to:
        charge.begin_tokenizing()
    if come_to == "reserving":
        charge.reserve(60, 30)
    charge.close()
    assert level(quota) == left


def test_requests_without_room_for_a_reservation_pay_nothing():
    quota, charge = open_charge(100, 40 * BYTES_PER_TOKEN)
    charge.begin_tokenizing()
    quota.pay(60)
    with pytest.raises(TooManyRequests) as refused:
        charge.reserve(150, 1)
    assert refused.value.retry_after_s == pytest.approx(6), "until there are 50"
    charge.close()
    assert level(quota) == 40


def test_a_token_is_charged_for_every_16_bytes():
    for num_bytes, is_paid in ((1600, True), (1599, False)):
        quota = KeyQuota("a", tokens=100, clock=lambda: 0.0)
        charge = RequestBudget().open("a", quota)
        charge.hold(num_bytes)
        charge.estimate()
        if is_paid:
            with pytest.raises(TooManyRequests):
                quota.take()
        else:
            quota.take()


async def test_small_bodies_are_parsed_at_once_and_large_ones_in_their_turn():
    budget = RequestBudget()
    small, large = budget.open("a"), budget.open("a")
    small.hold(64 << 10)
    large.hold((64 << 10) + 1)
    async with budget.turn("b"), budget.turn("c"):
        assert await small.parse(threading.get_ident) == threading.get_ident()
        waiting = asyncio.create_task(large.parse(threading.get_ident))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "two are under way"
    async with asyncio.timeout(5):
        assert await waiting != threading.get_ident()
    assert budget._taken == 0


async def test_turns_go_round_the_keys():
    budget, order = RequestBudget(turns=1), []

    async def work(name: str) -> None:
        async with budget.turn(name):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(name) for name in "aaaab"))
    assert order == ["a", "a", "b", "a", "a"]
    assert (budget._taken, budget._waiting) == (0, {})


async def test_work_that_fails_gives_its_turn_on():
    budget = RequestBudget(turns=1)
    with pytest.raises(ValueError, match="broken"):
        async with budget.turn("a"):
            raise ValueError("broken")
    async with asyncio.timeout(1), budget.turn("b"):
        assert budget._taken == 1


async def test_a_request_that_leaves_passes_on_its_turn():
    budget = RequestBudget(turns=1)
    async with budget.turn("a"):
        leaving = asyncio.create_task(budget.turn("b").__aenter__())
        staying = asyncio.create_task(budget.turn("c").__aenter__())
        await asyncio.sleep(0)
        leaving.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not staying.done(), "it had none to give on"
    await asyncio.wait_for(staying, 1)


async def test_a_request_that_leaves_as_its_turn_comes_passes_it_on():
    budget = RequestBudget(turns=1)
    async with budget.turn("a"):
        leaving = asyncio.create_task(budget.turn("b").__aenter__())
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    async with asyncio.timeout(1), budget.turn("c"):
        assert budget._taken == 1
