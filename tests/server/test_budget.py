"""Bytes, tokens and turns are charged before the work, and shared among keys."""

from __future__ import annotations

import asyncio

import pytest

from server.access.budget import BYTES_PER_TOKEN, Budget, Quota
from server.errors import TooManyRequests


def test_bytes_are_bounded_for_all_and_for_each():
    budget = Budget(held_bytes=100)
    first, second, third = budget.open("a"), budget.open("a"), budget.open("b")
    first.hold(40)
    with pytest.raises(TooManyRequests, match="100 of all clients and 50 of this one"):
        second.hold(20)
    third.hold(50)
    first.close()
    second.hold(50)
    for charge in (first, second, third):
        charge.close()
    assert (budget.held, dict(budget._of_keys)) == (0, {})


def test_without_keys_there_is_one_share():
    charge = Budget(held_bytes=100).open()
    charge.hold(100)
    with pytest.raises(TooManyRequests):
        charge.hold(1)


def test_the_estimate_is_paid_before_and_taken_back_after():
    quota = Quota("a", tokens=100, clock=lambda: 0.0)
    charge = Budget().open("a", quota)
    charge.hold(100 * BYTES_PER_TOKEN)
    charge.estimate()
    with pytest.raises(TooManyRequests, match="tokens per minute"):
        quota.take()
    charge.settle()
    quota.take()
    charge.settle()
    quota.take()


async def test_turns_go_round_the_keys():
    budget, order = Budget(turns=1), []

    async def work(name: str) -> None:
        async with budget.turn(name):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(name) for name in "aaaab"))
    assert order == ["a", "a", "b", "a", "a"]
    assert (budget._taken, budget._waiting) == (0, {})


async def test_one_that_leaves_gives_its_turn_on():
    budget = Budget(turns=1)
    async with budget.turn("a"):
        leaving = asyncio.create_task(budget.turn("b").__aenter__())
        staying = asyncio.create_task(budget.turn("c").__aenter__())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
    await asyncio.wait_for(staying, 1)


async def test_one_that_leaves_as_its_turn_comes_gives_it_on():
    budget = Budget(turns=1)
    async with budget.turn("a"):
        leaving = asyncio.create_task(budget.turn("b").__aenter__())
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    async with asyncio.timeout(1), budget.turn("c"):
        assert budget._taken == 1
