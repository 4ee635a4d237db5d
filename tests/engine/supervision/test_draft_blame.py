"""A depth whose drafts kill engines is held off until an operator releases it."""

from __future__ import annotations

import asyncio

import pytest

from eaglegate.engine.errors import RequestQuarantined
from eaglegate.engine.supervision.draft_blame import WINDOW_S, DeathInquiry, DraftBlame
from eaglegate.engine.supervision.policy import AppliedDepth
from tests.engine.supervision.mortal import (
    Cradle,
    ask,
    collect,
    following,
    tokens_of,
    until,
)

DEPTH = 5


def test_the_second_death_at_a_depth_holds_it_off():
    blame = DraftBlame()
    assert blame.add("eagle3", 5) is None
    assert blame.add("eagle3", 4) is None
    hold = blame.add("eagle3", 5)
    assert (hold.method, hold.depth, hold.bound) == ("eagle3", 5, 2)
    assert blame.add("eagle3", 5) is None, "it is held off already"
    assert (blame.limit(None), blame.limit(1), blame.limit(7)) == (2, 1, 2)


def test_depth_one_falls_to_no_drafts():
    blame = DraftBlame()
    blame.add("mtp", 1)
    assert blame.add("mtp", 1).bound == 0
    assert blame.bound == 0


def test_deaths_that_lie_far_apart_hold_nothing_off():
    at = [0.0]
    blame = DraftBlame(lambda: at[0])
    blame.add("eagle3", 5)
    at[0] = WINDOW_S + 1
    assert blame.add("eagle3", 5) is None
    at[0] += WINDOW_S - 1
    assert blame.add("eagle3", 5) is not None
    assert blame.release()
    assert blame.add("eagle3", 5) is None
    assert blame.bound is None


def drafts_kill(cradle: Cradle, most: int, step: int = 0):
    """A step of request "killer..." kills an engine whose drafts are longer than ``most``."""

    def doom(life: int, request, at: int) -> bool:
        bounds = cradle.lives[life].bounds
        depth = min(DEPTH if request.depth is None else request.depth, *bounds[-1:], DEPTH)
        return request.id.startswith("killer") and at == step and depth > most

    cradle.doom = doom


@pytest.mark.parametrize("step", [0, 2])
async def test_two_engines_killed_by_drafts_are_the_last(supervise, step: int):
    """Other requests of those engines go on, and count no further death."""
    cradle = Cradle(depth=DEPTH)
    drafts_kill(cradle, 2, step)
    engine, notes = await supervise(cradle)
    for turn in range(3):
        asked = [ask(f"{name}{turn}", tokens=30) for name in ("a", "killer", "b")]
        got = await asyncio.gather(*(collect(engine, request) for request in asked))
        assert [tokens_of(steps) for steps in got] == [following(request) for request in asked]
        await until(lambda: not engine.draft_holds or cradle.lives[-1].bounds)
    assert len(notes.lost) == 2
    assert notes.draft_deaths == [("eagle3", DEPTH)] * 2
    assert notes.held == [(DEPTH, True)]
    assert cradle.lives[-1].bounds == [2]
    assert [hold.bound for hold in engine.draft_holds] == [2]


async def test_a_release_gives_the_depth_back_and_an_operators_bound_stays(supervise):
    cradle = Cradle(depth=DEPTH)
    drafts_kill(cradle, 2)
    engine, notes = await supervise(cradle)
    for turn in range(2):
        await collect(engine, ask(f"killer{turn}"))
    await until(lambda: cradle.lives[-1].bounds == [2])
    assert await engine.set_depth(4) == AppliedDepth(2)
    cradle.lives[-1].kill()
    await until(lambda: notes.back == 3)
    assert cradle.lives[-1].bounds == [2], "the next engine is bounded, too"
    assert [hold.depth for hold in engine.release_drafts()] == [DEPTH]
    await until(lambda: cradle.lives[-1].bounds == [2, 4])
    assert notes.held == [(DEPTH, True), (DEPTH, False)]
    assert engine.release_drafts() == ()


async def test_a_request_that_kills_without_drafts_blames_none(supervise):
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison", depth=DEPTH)
    engine, notes = await supervise(cradle)
    with pytest.raises(RequestQuarantined):
        await collect(engine, ask("poison"))
    assert notes.draft_deaths == []


def kills(at: int, *names: str):
    """A doom: step ``at`` of a request of these names kills engines, with drafts and without."""
    return lambda life, request, step: request.id.rstrip("0123456789") in names and step == at


async def test_bystanders_of_a_request_that_kills_without_drafts_blame_none(supervise):
    """Two have made no step when the engines die, one has made many."""
    cradle = Cradle(doom=kills(0, "poison"), depth=DEPTH)
    engine, notes = await supervise(cradle)
    long = asyncio.create_task(collect(engine, ask("long", tokens=400)))
    for turn in range(3):
        await asyncio.sleep(0)
        asked = [ask(f"{name}{turn}", tokens=30) for name in ("a", "poison", "b")]
        got = await asyncio.gather(
            *(collect(engine, request) for request in asked), return_exceptions=True
        )
        assert isinstance(got[1], RequestQuarantined)
        assert tokens_of(got[0]) == following(asked[0])
    assert tokens_of(await long) == following(ask(tokens=400))
    assert len(notes.lost) >= 6
    assert notes.draft_deaths == []
    assert engine.draft_holds == ()


@pytest.mark.parametrize("guilty", [True, False])
async def test_drafts_are_blamed_once_every_suspect_has_run_again(guilty: bool):
    """The first one proves it against them at once; the last may be deadly without them."""
    inquiry, blamed = DeathInquiry(), list[str]()
    for name in ("a", "b"):
        inquiry.add_suspect(name)
    inquiry.blame_drafts(lambda: blamed.append("first"))
    inquiry.clear("a")
    assert blamed == []
    if guilty:
        inquiry.convict()
    inquiry.clear("b")
    inquiry.blame_drafts(lambda: blamed.append("again"))
    assert blamed == ([] if guilty else ["first"])


async def test_a_suspect_that_leaves_does_not_shield_the_drafts(supervise):
    cradle = Cradle(doom=lambda life, request, step: life == 0 and step == 2, depth=DEPTH)
    engine, notes = await supervise(cradle)
    cradle.lives[0].frozen.set()
    asked = [asyncio.create_task(collect(engine, ask(name))) for name in ("a", "b")]
    await until(lambda: len(cradle.lives[0].running) == 2)
    cradle.lives[0].kill()
    await until(lambda: notes.lost)
    asked[1].cancel()
    assert tokens_of(await asked[0]) == following(ask())
    assert notes.draft_deaths == [("eagle3", DEPTH)]


async def test_an_engine_that_an_operator_kills_blames_no_draft(supervise):
    cradle = Cradle(
        doom=lambda life, request, step: life < 3 and step == 0, depth=DEPTH, killed=True
    )
    engine, notes = await supervise(cradle)
    await collect(engine, ask())
    assert len(notes.lost) == 3
    assert notes.draft_deaths == []


async def test_an_engine_that_drafts_for_every_request_proves_nothing(supervise):
    """A request that asked it for no drafts ran with them."""
    cradle = Cradle(
        doom=lambda life, request, step: life < 2 and request.depth != 0,
        depth=DEPTH,
        per_request=False,
    )
    engine, notes = await supervise(cradle)
    for name in ("a", "b", "c"):
        await collect(engine, ask(name))
    assert len(notes.lost) == 2
    assert notes.draft_deaths == []
