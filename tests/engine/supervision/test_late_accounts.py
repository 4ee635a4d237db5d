"""Answers that go on in another engine, where engines account for them at their end."""

from __future__ import annotations

from eaglegate.engine.speculation.accounting import Account
from eaglegate.engine.supervision.continuation import Continuation
from eaglegate.engine.types import DecodeStep, EngineRequest, Sampling, Step
from eaglegate.text.events import FinishReason

REQUEST = EngineRequest("r", (1, 2), Sampling(max_tokens=20, temperature=0.0))
TWO = DecodeStep(3, 1, 2)


def taken(continuation: Continuation, *steps: Step) -> Account:
    account = Account()
    for step in steps:
        new = continuation.take(step)
        if new is not None:
            account.add(new)
    return account


def test_a_replay_keeps_its_whole_account():
    penalised = EngineRequest("r", (1,), Sampling(max_tokens=20, presence_penalty=0.5))
    continuation = Continuation(penalised)
    continuation.next_request()
    taken(continuation, Step((5,)), Step((6, 7)))
    assert continuation.next_request().prompt == (1,)
    life = taken(
        continuation,
        Step((5,)),
        Step((6, 7)),
        Step((8, 9), decode=(TWO, TWO), finish=FinishReason.STOP),
    )
    assert life.decode_steps == (TWO, TWO)
    assert continuation.pop_skipped() == []


def test_a_resumed_answer_explains_what_its_second_engine_made():
    continuation = Continuation(REQUEST)
    continuation.next_request()
    before = taken(continuation, Step((5,)), Step((6, 7)))
    assert continuation.next_request().prompt == (1, 2, 5, 6, 7)
    after = taken(
        continuation,
        Step((8, 9, 10)),
        Step((11, 12), decode=(TWO, TWO), finish=FinishReason.STOP),
    )
    totals = after.totals
    assert (totals.verify_steps, totals.undrafted) == (2, 1)
    assert (totals.tokens, totals.imbalance) == (5, 0)
    assert before.totals.imbalance == 2
