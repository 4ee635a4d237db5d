"""A depth whose drafts kill engines is held off until an operator releases it."""

from __future__ import annotations

import asyncio

import pytest

from eaglegate.engine.base import AppliedDepth
from eaglegate.engine.errors import RequestQuarantined
from eaglegate.engine.supervision.draft_blame import WINDOW_S, DraftBlame
from tests.engine.supervision.mortal import (
    Cradle,
    ask,
    collect,
    following,
    supervised,
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
async def test_two_engines_killed_by_drafts_are_the_last(step: int):
    """Other requests of those engines go on, and count no further death."""
    cradle = Cradle(depth=DEPTH)
    drafts_kill(cradle, 2, step)
    engine, notes = supervised(cradle)
    await engine.start()
    for turn in range(3):
        asked = [ask(f"{name}{turn}", tokens=30) for name in ("a", "killer", "b")]
        got = await asyncio.gather(*(collect(engine, request) for request in asked))
        assert [tokens_of(steps) for steps in got] == [following(request) for request in asked]
        await until(lambda: not engine._bounding or engine._bounding.done())
    assert len(notes.lost) == 2
    assert notes.draft_deaths == [("eagle3", DEPTH)] * 2
    assert notes.held == [(DEPTH, True)]
    assert cradle.lives[-1].bounds == [2]
    assert [hold.bound for hold in engine.draft_holds] == [2]
    await engine.aclose()


async def test_a_release_gives_the_depth_back_and_an_operators_bound_stays():
    cradle = Cradle(depth=DEPTH)
    drafts_kill(cradle, 2)
    engine, notes = supervised(cradle)
    await engine.start()
    for turn in range(2):
        await collect(engine, ask(f"killer{turn}"))
    await until(lambda: engine._bounding and engine._bounding.done())
    assert await engine.set_depth(4) == AppliedDepth(2)
    cradle.lives[-1].kill()
    await until(lambda: notes.back == 3)
    assert cradle.lives[-1].bounds == [2], "the next engine is bounded, too"
    assert [hold.depth for hold in engine.release_drafts()] == [DEPTH]
    await until(lambda: cradle.lives[-1].bounds == [2, 4])
    assert notes.held == [(DEPTH, True), (DEPTH, False)]
    assert engine.release_drafts() == ()
    await engine.aclose()


async def test_a_request_that_kills_without_drafts_blames_none():
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison", depth=DEPTH)
    engine, notes = supervised(cradle)
    await engine.start()
    with pytest.raises(RequestQuarantined):
        await collect(engine, ask("poison"))
    assert notes.draft_deaths == []
    await engine.aclose()


async def test_an_engine_that_an_operator_kills_blames_no_draft():
    cradle = Cradle(
        doom=lambda life, request, step: life < 3 and step == 0, depth=DEPTH, killed=True
    )
    engine, notes = supervised(cradle)
    await engine.start()
    await collect(engine, ask())
    assert len(notes.lost) == 3
    assert notes.draft_deaths == []
    await engine.aclose()


async def test_an_engine_that_drafts_for_every_request_proves_nothing():
    """A request that asked it for no drafts ran with them."""
    cradle = Cradle(
        doom=lambda life, request, step: life < 2 and request.depth != 0,
        depth=DEPTH,
        per_request=False,
    )
    engine, notes = supervised(cradle)
    await engine.start()
    for name in ("a", "b", "c"):
        await collect(engine, ask(name))
    assert len(notes.lost) == 2
    assert notes.draft_deaths == []
    await engine.aclose()
