"""Steps whose tokens no client was given still count: vLLM's own counters hold them, too."""

from __future__ import annotations

from eaglegate.engine.base import SupportsUnclaimed
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Constraint, DecodeStep
from tests.engine.supervision.mortal import Cradle, Mortal, ask, collect, supervised

LOST = sum_steps([DecodeStep(3, 2, 3)], requests=0)


class Counting(Mortal, SupportsUnclaimed):
    """An engine that has one step of its own that nobody was given."""

    @property
    def unclaimed(self) -> Totals:
        return LOST


async def test_steps_of_a_replay_that_were_delivered_before_are_unclaimed(supervise):
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 3)
    engine, _ = await supervise(cradle)
    got = await collect(engine, ask(constraint=Constraint("json_object")))
    before = [step for at, step in enumerate(got) if at < 3]
    delivered = sum_steps((d for step in before for d in step.decode), requests=0)
    assert delivered.verify_steps == 2
    assert engine.unclaimed == delivered


async def test_unclaimed_totals_outlive_their_engines():
    cradle = Cradle(doom=lambda life, _, step: life == 0 and step == 3)
    cradle.make = lambda: (
        cradle.lives.append(Counting(cradle, len(cradle.lives))) or cradle.lives[-1]
    )
    engine, _ = supervised(cradle)
    assert engine.unclaimed == Totals()
    await engine.start()
    assert engine.unclaimed == LOST
    await collect(engine, ask())
    assert len(cradle.lives) == 2
    assert engine.unclaimed == LOST + LOST
    await engine.aclose()
