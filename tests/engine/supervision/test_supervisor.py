"""Engines die, requests go on: each token once, and the account exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.speculation.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.policy import LossCause, RecoveryOutcome
from eaglegate.engine.types import Constraint, Sampling
from tests.engine.supervision.mortal import (
    FAST,
    Cradle,
    ask,
    collect,
    following,
    supervised,
    tokens_of,
    until,
)

CONSTRAINT = Constraint("json_object")
HOT = Sampling(max_tokens=12, temperature=1.0, seed=4)


def totals(got):
    account = Account()
    for step in got:
        account.add(step)
    return account.totals


@pytest.mark.parametrize("dies_at", range(6))
@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, RecoveryOutcome.RESUMED),
        ({"constraint": CONSTRAINT}, RecoveryOutcome.REPLAYED),
        ({"sampling": {"presence_penalty": 0.5}}, RecoveryOutcome.REPLAYED),
        ({"sampling": {"logprobs": 2}}, RecoveryOutcome.RESUMED),
    ],
)
async def test_the_stream_is_that_of_an_undisturbed_engine(dies_at, fields, outcome):
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == dies_at)
    engine, notes = supervised(cradle)
    await engine.start()
    request = ask(**{key: dict(v) if isinstance(v, dict) else v for key, v in fields.items()})
    got = await collect(engine, request)
    assert tokens_of(got) == following(request)
    assert got[-1].finish is not None
    assert totals(got).imbalance == 0
    assert notes.lost == [LossCause.DIED]
    assert notes.outcomes == {outcome if dies_at else RecoveryOutcome.RERUN: 1}
    await engine.aclose()


@pytest.mark.parametrize("second_cuts", [(2, 2, 2, 2), (1, 5, 5), (1, 11), (1,)])
async def test_a_replay_cut_otherwise_joins_up(second_cuts):
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 3)
    engine, _ = supervised(cradle)
    await engine.start()
    steps = read_steps(engine.generate, request := ask(constraint=CONSTRAINT))
    got = [await anext(steps), await anext(steps)]
    cradle.cuts = second_cuts
    got += [step async for step in steps]
    assert tokens_of(got) == following(request)
    assert totals(got).imbalance == 0
    assert totals(got).tokens == 12
    await engine.aclose()


async def test_limits_shrink_by_what_was_delivered():
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, _ = supervised(cradle)
    await engine.start()
    await collect(engine, ask(sampling={"min_tokens": 6}))
    second = cradle.lives[1].requests[0]
    assert len(second.prompt) == 3 + 4
    assert (second.sampling.max_tokens, second.sampling.min_tokens) == (12 - 4, 6 - 4)
    await engine.aclose()


async def test_sampling_that_will_need_a_replay_gets_a_seed():
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, notes = supervised(cradle)
    await engine.start()
    warm = Sampling(max_tokens=12, temperature=1.0)
    got = await collect(engine, structs.replace(ask(constraint=CONSTRAINT), sampling=warm))
    seeds = {life.requests[0].sampling.seed for life in cradle.lives}
    assert len(seeds) == 1
    assert None not in seeds
    assert len(tokens_of(got)) == 12
    assert notes.outcomes == {RecoveryOutcome.REPLAYED: 1}
    await collect(engine, structs.replace(ask(), sampling=warm))
    assert cradle.lives[1].requests[-1].sampling.seed is None
    await engine.aclose()


async def test_a_replay_that_differs_ends_a_constrained_answer():
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, _ = supervised(cradle)
    await engine.start()
    steps = read_steps(engine.generate, ask(constraint=CONSTRAINT))
    await anext(steps)
    cradle.doom = lambda life, request, step: life == 0
    original = cradle.make

    def otherwise():
        life = original()
        life.script = lambda request: [*following_other(request)]
        return life

    def following_other(request):
        from eaglegate.engine.scripted import steps as cut

        return cut([9] * request.sampling.max_tokens)

    engine.make = otherwise
    with pytest.raises(EngineDead, match="could not be continued"):
        async for _ in steps:
            pass
    await engine.aclose()


async def test_a_seeded_answer_goes_on_behind_its_tokens():
    """A seeded token's noise depends on its position in the whole sequence: nothing is generated
    again."""
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, _ = supervised(cradle)
    await engine.start()
    got = [step async for step in read_steps(engine.generate, structs.replace(ask(), sampling=HOT))]
    assert len(tokens_of(got)) == 12
    (begun,), (resumed,) = (life.requests for life in cradle.lives)
    assert resumed.prompt == (*begun.prompt, *tokens_of(got)[: len(resumed.prompt) - 3])
    assert len(resumed.prompt) > 3
    assert resumed.sampling.seed == HOT.seed
    await engine.aclose()


@pytest.mark.thorough
async def test_many_streams_through_many_deaths():
    deaths = 6
    patience = replace(FAST, max_failures=99, continuations=99)
    cradle = Cradle()
    engine, notes = supervised(cradle, patience)
    await engine.start()
    requests = [
        ask(f"r{i}", tokens=300, prompt=(i, i + 1), constraint=CONSTRAINT if i % 4 == 0 else None)
        for i in range(16)
    ]

    async def kill():
        for before in range(1, deaths + 1):
            await until(lambda: cradle.lives[-1].running and notes.back >= len(cradle.lives) - 1)
            for _ in range(20):
                await asyncio.sleep(0)
            cradle.lives[-1].kill()
            await until(lambda n=before: len(cradle.lives) > n)

    killer = asyncio.create_task(kill())
    got = await asyncio.gather(*(collect(engine, request) for request in requests))
    await killer
    for request, steps in zip(requests, got, strict=True):
        assert tokens_of(steps) == following(request)
        assert totals(steps).imbalance == 0
    assert not notes.outcomes[RecoveryOutcome.LOST]
    assert not notes.outcomes[RecoveryOutcome.QUARANTINED]
    await engine.aclose()
