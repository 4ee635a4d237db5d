"""Engines die, requests go on: each token once, and the account exact."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engine.base import AppliedDepth
from engine.errors import EngineDead, EngineStartError, RequestQuarantined
from engine.speculation.accounting import Account
from engine.supervision.losses import PostMortem
from engine.supervision.policy import LossCause, RecoveryOutcome, SupervisionTimeouts
from engine.types import Constraint, Sampling
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
    steps = engine.generate(request := ask(constraint=CONSTRAINT))
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
    got = await collect(engine, replace(ask(constraint=CONSTRAINT), sampling=warm))
    seeds = {life.requests[0].sampling.seed for life in cradle.lives}
    assert len(seeds) == 1
    assert None not in seeds
    assert len(tokens_of(got)) == 12
    assert notes.outcomes == {RecoveryOutcome.REPLAYED: 1}
    await collect(engine, replace(ask(), sampling=warm))
    assert cradle.lives[1].requests[-1].sampling.seed is None
    await engine.aclose()


async def test_a_replay_that_differs_ends_a_constrained_answer():
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, _ = supervised(cradle)
    await engine.start()
    steps = engine.generate(ask(constraint=CONSTRAINT))
    await anext(steps)
    cradle.doom = lambda life, request, step: life == 0
    original = cradle.make

    def otherwise():
        life = original()
        life.script = lambda request: [*following_other(request)]
        return life

    def following_other(request):
        from engine.scripted import steps as cut

        return cut([9] * request.sampling.max_tokens)

    engine.make = otherwise
    with pytest.raises(EngineDead, match="could not be continued"):
        async for _ in steps:
            pass
    await engine.aclose()


async def test_a_seeded_answer_whose_replay_differs_goes_on_behind_its_tokens():
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, _ = supervised(cradle)
    await engine.start()
    hot = Sampling(max_tokens=12, temperature=1.0, seed=4)
    steps = engine.generate(replace(ask(), sampling=hot))
    got = [await anext(steps)]
    for life in cradle.lives:
        life.cradle = cradle
    real, other = cradle.make, (8, 8, 8)

    def otherwise():
        life = real()
        play = life.script
        life.script = lambda r: play(replace(r, prompt=(*r.prompt, *other[len(r.prompt) - 3 :])))
        return life

    engine.make = otherwise
    got += [step async for step in steps]
    assert len(tokens_of(got)) == 12
    assert len(cradle.lives[1].requests) == 2
    assert cradle.lives[1].requests[1].prompt[3:] == tuple(tokens_of(got)[:4])
    await engine.aclose()


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


async def test_the_request_that_kills_is_found_and_named_among_innocent_ones():
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison")
    engine, notes = supervised(cradle)
    await engine.start()
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
    assert (await engine.health()).live or await engine._wait_session()
    assert tokens_of(await collect(engine, ask("later"))) == following(ask("later"))
    await engine.aclose()


@pytest.mark.parametrize(("deaths", "blamed"), [(3, False), (4, True)])
async def test_signals_from_outside_are_blamed_on_a_request_late(deaths, blamed):
    cradle = Cradle(doom=lambda life, request, step: life < deaths, killed=True)
    engine, notes = supervised(cradle, replace(FAST, continuations=9, kills=3))
    await engine.start()
    got = await asyncio.gather(collect(engine, ask()), return_exceptions=True)
    assert isinstance(got[0], RequestQuarantined) == blamed
    assert len(notes.lost) == deaths
    await engine.aclose()


async def test_a_request_that_kills_in_mid_stream_is_found_too():
    cradle = Cradle(doom=lambda life, request, step: step == (5 if life == 0 else 0))
    engine, notes = supervised(cradle)
    await engine.start()
    with pytest.raises(RequestQuarantined):
        await collect(engine, ask("poison"))
    assert len(notes.lost) == 3
    await engine.aclose()


async def test_a_request_that_gets_no_further_survives_only_so_many_deaths():
    patience = replace(FAST, continuations=2, max_failures=99)
    cradle = Cradle(doom=lambda life, request, step: step == 2)
    engine, notes = supervised(cradle, patience)
    await engine.start()
    with pytest.raises(EngineDead, match="could not be continued"):
        await collect(engine, ask(tokens=100, constraint=CONSTRAINT))
    assert notes.outcomes == {RecoveryOutcome.REPLAYED: 2, RecoveryOutcome.LOST: 1}
    await engine.aclose()


@pytest.mark.parametrize(("tokens", "survives"), [(24, True), (100, False)])
async def test_a_request_that_gets_on_survives_more_deaths_but_not_any_number(tokens, survives):
    cradle = Cradle(doom=lambda life, request, step: step == 2)
    engine, notes = supervised(cradle, replace(FAST, continuations=2, losses=8))
    await engine.start()
    got = await asyncio.gather(
        collect(engine, request := ask(tokens=tokens)), return_exceptions=True
    )
    if survives:
        assert tokens_of(got[0]) == following(request)
    else:
        assert isinstance(got[0], EngineDead)
        assert (len(notes.lost), notes.outcomes[RecoveryOutcome.LOST]) == (9, 1)
    await engine.aclose()


DEFAULTS = replace(
    SupervisionTimeouts(), poll_s=0.005, hang_s=0.05, backoff_s=0.0, max_backoff_s=0.0
)
"""Counts and limits as they come; only the waiting is short."""


@pytest.mark.parametrize("killed", [True, False])
async def test_twenty_deaths_under_sixteen_streams_with_default_limits(killed):
    cradle = Cradle(killed=killed)
    engine, notes = supervised(cradle, DEFAULTS)
    await engine.start()
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
    assert not notes.outcomes[RecoveryOutcome.LOST]
    assert not notes.outcomes[RecoveryOutcome.QUARANTINED]
    assert (await engine.health()).live or await engine._wait_session()
    await engine.aclose()


async def test_an_engine_that_is_killed_while_idle_is_started_every_time():
    cradle = Cradle(killed=True)
    engine, notes = supervised(cradle, DEFAULTS)
    await engine.start()
    for deaths in range(12):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    assert not engine.is_closed
    await engine.aclose()


async def test_an_engine_that_dies_by_itself_while_idle_is_given_up():
    cradle = Cradle()
    engine, notes = supervised(cradle, DEFAULTS)
    await engine.start()
    for deaths in range(5):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    cradle.lives[-1].kill()
    assert "lost 6 times in a row without serving a token" in await engine.wait_failed()
    await engine.aclose()


async def test_losses_through_one_request_are_not_the_engines_failures():
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison")
    engine, _ = supervised(cradle, DEFAULTS)
    await engine.start()
    for _ in range(8):
        with pytest.raises(RequestQuarantined):
            await collect(engine, ask("poison"))
    assert tokens_of(await collect(engine, ask())) == following(ask())
    await engine.aclose()


async def test_an_engine_stopped_from_outside_condemns_no_request():
    """SIGSTOP: as many in a row as there are, the innocent request is run again."""
    cradle = Cradle(killed=True)
    engine, notes = supervised(cradle, DEFAULTS)
    await engine.start()
    cradle.freeze_at = lambda life: life < 8
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.HUNG] * 8
    await engine.aclose()


async def test_a_stall_is_nobodys_fault_while_others_are_in_the_engine():
    cradle = Cradle()
    engine, notes = supervised(cradle, DEFAULTS)
    await engine.start()
    running = asyncio.create_task(collect(engine, other := ask("other", tokens=200)))
    await until(lambda: cradle.lives[0].running)
    cradle.freeze_at = lambda life: life < 3
    cradle.lives[0].frozen.set()
    asked = [ask(f"r{i}") for i in range(4)]
    got = await asyncio.gather(*(collect(engine, request) for request in asked))
    assert [tokens_of(steps) for steps in got] == [following(request) for request in asked]
    assert tokens_of(await running) == following(other)
    assert not notes.outcomes[RecoveryOutcome.QUARANTINED]
    await engine.aclose()


async def test_a_request_that_hangs_engines_alone_is_found():
    cradle = Cradle()
    engine, notes = supervised(cradle, DEFAULTS)
    await engine.start()
    cradle.freeze_at = lambda life: True
    with pytest.raises(RequestQuarantined):
        await collect(engine, ask("poison"))
    assert notes.lost == [LossCause.HUNG] * 2
    await engine.aclose()


async def test_losses_are_remembered_with_their_cause():
    cradle = Cradle(start_fails={1})
    engine, notes = supervised(cradle)
    await engine.start()
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
    await engine.aclose()


async def test_only_the_last_losses_are_remembered():
    cradle = Cradle(killed=True)
    engine, notes = supervised(cradle)
    await engine.start()
    for deaths in range(20):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    assert len(list(engine.losses)) == 16
    await engine.aclose()


async def test_a_start_that_fails_in_an_unforeseen_way_is_followed_by_another():
    cradle = Cradle()
    engine, notes = supervised(cradle)
    await engine.start()
    real, broken = engine.make, [OSError("no files left")]

    def make():
        if broken:
            raise broken.pop()
        return real()

    engine.make = make
    cradle.lives[0].kill()
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.DIED, LossCause.START]
    await engine.aclose()


async def test_a_bound_is_taken_at_once_whether_the_engine_is_there_or_away():
    cradle = Cradle(depth=3)
    engine, _ = supervised(cradle)
    await engine.start()
    assert await engine.set_depth(2) == AppliedDepth(2)
    cradle.start_hangs = {1}
    cradle.lives[0].kill()
    await until(lambda: len(cradle.lives) == 2)
    async with asyncio.timeout(1):
        assert await engine.set_depth(1) == AppliedDepth(1, pending=True)
    cradle.lives[1].hangs.set()
    await until(lambda: (life := engine._live_session) and life.engine.bounds == [1])
    await engine.aclose()


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [
        ({"sampling": Sampling(max_tokens=12, temperature=1.0, seed=4)}, True),
        ({"sampling": Sampling(max_tokens=12, temperature=1.0), "constraint": CONSTRAINT}, True),
        ({"sampling": Sampling(max_tokens=12, temperature=1.0)}, False),
        ({"sampling": Sampling(max_tokens=12, temperature=0.0, seed=4)}, False),
    ],
)
async def test_what_follows_from_a_seed_keeps_its_depth_in_every_engine(fields, keeps):
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2, depth=3)
    engine, _ = supervised(cradle)
    await engine.start()
    await engine.set_depth(2)
    steps = engine.generate(replace(ask(), **fields))
    await anext(steps)
    await engine.set_depth(1)
    async for _ in steps:
        pass
    asked = [life.requests[0] for life in cradle.lives]
    assert len(asked) == 2
    wanted = (2, True) if keeps else (None, False)
    assert [(request.depth, request.keeps_depth) for request in asked] == [wanted] * 2
    await engine.aclose()


async def test_a_bound_that_comes_while_a_new_engine_takes_another_counts():
    cradle = Cradle(depth=3)
    engine, notes = supervised(cradle)
    await engine.start()
    await engine.set_depth(2)
    real = cradle.make

    def make():
        life = real()
        take = life.set_depth

        async def taking(depth):
            if not life.bounds:
                await engine.set_depth(1)
            return await take(depth)

        life.set_depth = taking
        return life

    engine.make = make
    cradle.lives[0].kill()
    await until(lambda: notes.back)
    assert cradle.lives[1].bounds == [2, 1]
    await engine.aclose()


async def test_a_bound_does_not_wait_for_an_engine_that_hangs(monkeypatch):
    monkeypatch.setattr("engine.supervisor.BOUND_S", 0.01)
    cradle = Cradle(depth=3)
    engine, _ = supervised(cradle, replace(FAST, hang_s=60))
    await engine.start()
    cradle.lives[0].frozen.set()
    tasks = len(asyncio.all_tasks())
    assert await engine.set_depth(1) == AppliedDepth(1, pending=True)
    assert len(asyncio.all_tasks()) == tasks
    await engine.aclose()


async def test_an_idle_engine_that_dies_is_replaced():
    engine, notes = supervised(cradle := Cradle())
    await engine.start()
    cradle.lives[0].kill()
    await until(lambda: notes.back)
    assert (await engine.health()).live
    await engine.aclose()


async def test_an_engine_that_hangs_is_replaced_and_its_requests_go_on():
    engine, notes = supervised(cradle := Cradle())
    await engine.start()
    request = ask(tokens=30)
    steps = engine.generate(request)
    got = [await anext(steps)]
    cradle.lives[0].frozen.set()
    async with asyncio.timeout(5):
        await cradle.lives[0].died.wait()
    got += [step async for step in steps]
    assert tokens_of(got) == following(request)
    assert notes.lost == [LossCause.HUNG]
    await engine.aclose()


async def test_an_engine_that_answers_but_makes_no_steps_has_hung():
    from engine.scripted import Pause

    engine, notes = supervised(cradle := Cradle(), replace(FAST, stall_s=0.03))
    await engine.start()
    cradle.lives[0].script = [Pause(0.2), *cradle.lives[0].play(ask())]
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.HUNG]
    await engine.aclose()


async def test_a_crash_loop_ends_and_says_why():
    cradle = Cradle(start_fails={1, 2, 3, 4, 5})
    engine, notes = supervised(cradle, replace(FAST, max_failures=3))
    await engine.start()
    cradle.lives[0].kill()
    with pytest.raises(EngineDead, match=r"lost 4 times in a row.*no memory left"):
        await collect(engine, ask())
    assert "no memory left" in await engine.wait_failed()
    assert notes.lost == [LossCause.DIED, LossCause.START, LossCause.START, LossCause.START]
    health = await engine.health()
    assert not health.live
    assert "no memory left" in health.reason
    await engine.aclose()


async def test_a_start_that_never_ends_is_a_failed_one():
    cradle = Cradle(start_hangs={1})
    engine, notes = supervised(cradle, replace(FAST, start_s=0.01))
    await engine.start()
    cradle.lives[0].kill()
    assert tokens_of(await collect(engine, ask())) == following(ask())
    assert notes.lost == [LossCause.DIED, LossCause.START]
    await engine.aclose()
    cradle.start_hangs = {3}
    engine, _ = supervised(cradle, replace(FAST, start_s=0.01))
    with pytest.raises(EngineStartError, match=r"not ready after 0.01 s.*--engine-start-s"):
        await engine.start()


async def test_a_long_life_wipes_out_earlier_failures():
    cradle = Cradle()
    engine, notes = supervised(cradle, replace(FAST, max_failures=2, stable_s=0.0))
    await engine.start()
    for deaths in range(5):
        cradle.lives[-1].kill()
        await until(lambda n=deaths: notes.back > n)
    assert (await engine.health()).live
    await engine.aclose()


async def test_health_tells_of_a_restart():
    cradle = Cradle()
    engine, _ = supervised(cradle)
    await engine.start()
    gate = asyncio.Event()
    real = cradle.make

    def slow():
        life = real()
        start = life.start

        async def late():
            await gate.wait()
            return await start()

        life.start = late
        return life

    engine.make = slow
    cradle.lives[0].kill()
    await cradle.lives[0].died.wait()
    await until(lambda: len(cradle.lives) == 2)
    assert "being restarted (died: killed)" in (await engine.health()).reason
    gate.set()
    assert tokens_of(await collect(engine, ask())) == following(ask())
    await engine.aclose()


async def test_a_consumer_that_leaves_aborts_the_engine_request():
    engine, _ = supervised(cradle := Cradle())
    await engine.start()
    steps = engine.generate(ask(tokens=100))
    await anext(steps)
    await steps.aclose()
    assert cradle.lives[0].aborted == ["r"]
    assert not cradle.lives[0].running
    await engine.aclose()


async def test_after_closing_there_is_nothing_to_wait_for():
    engine, _ = supervised(Cradle())
    await engine.start()
    await engine.aclose()
    with pytest.raises(EngineDead, match="closed"):
        await collect(engine, ask())
