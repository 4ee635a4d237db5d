"""Blame for an engine's death: a request's, or the engine's own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from eaglegate.engine.errors import EngineDead, RequestQuarantined
from eaglegate.engine.supervision.policy import LossCause, RecoveryOutcome, SupervisionTimeouts
from eaglegate.engine.types import PostMortem
from tests.engine.supervision.mortal import (
    FAST,
    Cradle,
    ask,
    collect,
    following,
    tokens_of,
    until,
)
from tests.engine.supervision.test_supervisor import CONSTRAINT, totals

pytestmark = pytest.mark.thorough


async def test_the_request_that_kills_is_found_and_named_among_innocent_ones(supervise):
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison")
    engine, notes = await supervise(cradle)
    names = ["a", "b", "poison", "c", "d"]
    asked = [ask(name, tokens=40) for name in names]
    got = await asyncio.gather(
        *(collect(engine, request) for request in asked), return_exceptions=True
    )
    for name, request, result in zip(names, asked, got, strict=True):
        if name == "poison":
            assert isinstance(result, RequestQuarantined)
            assert "poison" in str(result)
        else:
            assert tokens_of(result) == following(request)
    assert len(notes.lost) == 2
    assert tokens_of(await collect(engine, ask("later"))) == following(ask("later"))


async def test_a_request_that_kills_with_a_draft_is_served_without_one(supervise):
    cradle = Cradle(doom=lambda life, request, step: request.id == "killer" and request.depth != 0)
    engine, notes = await supervise(cradle)
    asked = [ask(name, tokens=40) for name in ("a", "killer", "b")]
    got = await asyncio.gather(*(collect(engine, request) for request in asked))
    assert [tokens_of(steps) for steps in got] == [following(request) for request in asked]
    assert len(notes.lost) == 1
    assert not notes.outcomes[RecoveryOutcome.QUARANTINED]


@pytest.mark.parametrize("constraint", [None, CONSTRAINT])
async def test_a_draft_that_kills_in_mid_stream_costs_two_engines_at_most(supervise, constraint):
    cradle = Cradle(doom=lambda life, request, step: step == 3 and request.depth != 0)
    engine, notes = await supervise(cradle)
    request = ask(tokens=100, constraint=constraint)
    assert tokens_of(await collect(engine, request)) == following(request)
    assert len(notes.lost) == 2


async def test_a_signal_from_outside_says_nothing_about_drafts(supervise):
    cradle = Cradle(doom=lambda life, request, step: life < 3 and step == 3, killed=True)
    engine, _ = await supervise(cradle)
    request = ask(tokens=60)
    assert tokens_of(await collect(engine, request)) == following(request)
    assert {asked.depth for life in cradle.lives for asked in life.requests} == {None}


@pytest.mark.parametrize(("deaths", "blamed"), [(3, False), (4, True)])
async def test_signals_from_outside_are_blamed_on_a_request_late(supervise, deaths, blamed):
    cradle = Cradle(doom=lambda life, request, step: life < deaths, killed=True)
    engine, notes = await supervise(cradle, replace(FAST, continuations=9, kills=3))
    got = await asyncio.gather(collect(engine, ask()), return_exceptions=True)
    assert isinstance(got[0], RequestQuarantined) == blamed
    assert len(notes.lost) == deaths


async def test_a_request_that_kills_in_mid_stream_is_found_too(supervise):
    cradle = Cradle(doom=lambda life, request, step: step == (5 if life == 0 else 0))
    engine, notes = await supervise(cradle)
    with pytest.raises(RequestQuarantined):
        await collect(engine, ask("poison"))
    assert len(notes.lost) == 3


async def test_a_request_that_gets_no_further_survives_only_so_many_deaths(supervise):
    patience = replace(FAST, continuations=2, max_failures=99)
    cradle = Cradle(doom=lambda life, request, step: step == 2)
    engine, notes = await supervise(cradle, patience)
    with pytest.raises(EngineDead, match="could not be continued"):
        await collect(engine, ask(tokens=100, constraint=CONSTRAINT))
    assert notes.outcomes == {RecoveryOutcome.REPLAYED: 2, RecoveryOutcome.LOST: 1}


@pytest.mark.parametrize(("tokens", "survives"), [(24, True), (100, False)])
async def test_a_request_that_gets_on_survives_more_deaths_but_not_all(supervise, tokens, survives):
    cradle = Cradle(doom=lambda life, request, step: step == 2)
    engine, notes = await supervise(cradle, replace(FAST, continuations=2, losses=8))
    got = await asyncio.gather(
        collect(engine, request := ask(tokens=tokens)), return_exceptions=True
    )
    if survives:
        assert tokens_of(got[0]) == following(request)
    else:
        assert isinstance(got[0], EngineDead)
        assert (len(notes.lost), notes.outcomes[RecoveryOutcome.LOST]) == (9, 1)


DEFAULTS = replace(
    SupervisionTimeouts(), poll_s=0.005, hang_s=0.05, backoff_s=0.0, max_backoff_s=0.0
)


"""Counts and limits as they come; only the waiting is short."""


@pytest.mark.parametrize("killed", [True, False])
async def test_twenty_deaths_under_sixteen_streams_with_default_limits(supervise, killed):
    cradle = Cradle(killed=killed)
    engine, notes = await supervise(cradle, DEFAULTS)
    requests = [
        ask(f"r{i}", tokens=500, prompt=(i, i + 1), constraint=CONSTRAINT if i % 4 == 0 else None)
        for i in range(16)
    ]

    async def kill():
        for before in range(1, 21):
            await until(lambda: cradle.lives[-1].running and notes.back >= len(cradle.lives) - 1)
            for _ in range(20 + 10 * before * (not killed)):  # long enough for replays to get on
                await asyncio.sleep(0)
            cradle.lives[-1].kill()
            await until(lambda n=before: len(cradle.lives) > n)

    killer = asyncio.create_task(kill())
    got = await asyncio.gather(*(collect(engine, request) for request in requests))
    killer.cancel()
    for request, steps in zip(requests, got, strict=True):
        assert tokens_of(steps) == following(request)
        assert totals(steps).imbalance == 0
    assert not notes.outcomes[RecoveryOutcome.LOST]
    assert not notes.outcomes[RecoveryOutcome.QUARANTINED]
    assert tokens_of(await collect(engine, ask("later"))) == following(ask("later"))


async def test_an_engine_that_is_killed_while_idle_is_started_every_time(supervise):
    cradle = Cradle(killed=True)
    engine, notes = await supervise(cradle, DEFAULTS)
    for deaths in range(12):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    assert not engine.is_closed


async def test_an_engine_that_dies_by_itself_while_idle_is_given_up(supervise):
    cradle = Cradle()
    engine, notes = await supervise(cradle, DEFAULTS)
    for deaths in range(5):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    cradle.lives[-1].kill()
    assert "lost 6 times in a row without serving a token" in await engine.wait_failed()


async def test_losses_through_one_request_are_not_the_engines_failures(supervise):
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison")
    engine, _ = await supervise(cradle, DEFAULTS)
    for _ in range(8):
        with pytest.raises(RequestQuarantined):
            await collect(engine, ask("poison"))
    assert tokens_of(await collect(engine, ask())) == following(ask())


async def test_an_engine_stopped_from_outside_condemns_no_request(supervise):
    """SIGSTOP: as many in a row as there are, the innocent request is run again."""
    cradle = Cradle(killed=True)
    engine, notes = await supervise(cradle, DEFAULTS)
    cradle.freeze_at = lambda life: life < 8
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.HUNG] * 8


async def test_a_stall_is_nobodys_fault_while_others_are_in_the_engine(supervise):
    cradle = Cradle()
    engine, notes = await supervise(cradle, DEFAULTS)
    running = asyncio.create_task(collect(engine, other := ask("other", tokens=200)))
    await until(lambda: cradle.lives[0].running)
    cradle.freeze_at = lambda life: life < 3
    cradle.lives[0].frozen.set()
    asked = [ask(f"r{i}") for i in range(4)]
    got = await asyncio.gather(*(collect(engine, request) for request in asked))
    assert [tokens_of(steps) for steps in got] == [following(request) for request in asked]
    assert tokens_of(await running) == following(other)
    assert not notes.outcomes[RecoveryOutcome.QUARANTINED]


async def test_a_request_that_hangs_engines_alone_is_found(supervise):
    cradle = Cradle()
    engine, notes = await supervise(cradle, DEFAULTS)
    cradle.freeze_at = lambda life: True
    with pytest.raises(RequestQuarantined):
        await collect(engine, ask("poison"))
    assert notes.lost == [LossCause.HUNG] * 2


async def test_losses_are_remembered_with_their_cause(supervise):
    cradle = Cradle(start_fails={1})
    engine, notes = await supervise(cradle)
    cradle.lives[0].explanation = PostMortem("SIGSEGV", "RuntimeError: boom", ("line",))
    cradle.lives[0].kill()
    await until(lambda: notes.back)
    died, start = engine.losses
    assert (died.cause, died.ended_by, died.error) == (
        LossCause.DIED,
        "SIGSEGV",
        "RuntimeError: boom",
    )
    assert "SIGSEGV; RuntimeError: boom" in died.summary
    assert (start.cause, start.reason) == (LossCause.START, "no memory left")
    assert start.lived_s is None


async def test_only_the_last_losses_are_remembered(supervise):
    cradle = Cradle(killed=True)
    engine, notes = await supervise(cradle)
    for deaths in range(20):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    assert len(list(engine.losses)) == 16


async def test_a_start_that_fails_in_an_unforeseen_way_is_followed_by_another(supervise):
    cradle = Cradle()
    engine, notes = await supervise(cradle)
    real, broken = engine.make, [OSError("no files left")]

    def make():
        if broken:
            raise broken.pop()
        return real()

    engine.make = make
    cradle.lives[0].kill()
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.DIED, LossCause.START]
