"""Engines die, requests go on: each token once, and the account exact."""

from __future__ import annotations

import pytest

from eaglegate.engine.errors import EngineDead
from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.policy import LossCause, RecoveryOutcome
from eaglegate.engine.types import Constraint
from eaglegate.text.events import FinishReason
from tests.engine.supervision.mortal import (
    Cradle,
    ask,
    collect,
    following,
    tokens_of,
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
async def test_the_stream_is_that_of_an_undisturbed_engine(supervise, dies_at, fields, outcome):
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == dies_at)
    engine, notes = await supervise(cradle)
    request = ask(**{key: dict(v) if isinstance(v, dict) else v for key, v in fields.items()})
    got = await collect(engine, request)
    assert tokens_of(got) == following(request)
    assert [step.finish for step in got if step.finish] == [FinishReason.LENGTH]
    assert totals(got).imbalance == 0
    assert notes.lost == [LossCause.DIED]
    assert notes.outcomes == {outcome if dies_at else RecoveryOutcome.RERUN: 1}


async def test_a_replay_that_differs_ends_a_constrained_answer(supervise):
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 2)
    engine, _ = await supervise(cradle)
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
