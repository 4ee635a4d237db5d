"""A worker's scheduler reports an answer's account to vLLM's own server."""

from __future__ import annotations

from vllm.v1.engine import EngineCoreOutput, FinishReason

from eaglegate.engine.remote.probe import SpeculationAccount, lay_decode_steps
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.vllm_backend.scheduler import RequestAccounts


def output(*token_ids: int, finish: FinishReason | None = None) -> EngineCoreOutput:
    return EngineCoreOutput("r", list(token_ids), finish_reason=finish)


def test_the_whole_answers_account_comes_with_its_last_output():
    accounts = RequestAccounts(3)
    steps = [
        (output(1), 0, 0),
        (output(2, 3, 4), 3, 2),
        (output(5), 0, 0),
        (output(6), 3, 0),
        (output(7, 8, finish=FinishReason.LENGTH), 2, 2),
    ]
    told = [accounts.add(*step) for step in steps]
    assert told[:-1] == [None] * 4
    said = told[-1].to_dict()
    assert said["acceptance_histogram"] == [1, 0, 2, 0]
    assert said["num_spec_steps"] == 3
    assert said["num_draft_tokens"] == 8
    assert said["per_step_drafted"] == [3, 0, 3, 2]
    assert said["per_step_accepted"] == [2, 0, 0, 2]
    totals = sum_steps(
        lay_decode_steps([1, 3, 1, 1, 2], SpeculationAccount.read(said, 8)), first_tokens=1
    )
    assert (totals.verify_steps, totals.undrafted, totals.accepted, totals.cut) == (3, 1, 4, 0)
    assert totals.imbalance == 0


def test_accounts_of_ended_requests_are_forgotten():
    accounts = RequestAccounts(3)
    accounts.add(output(1), 0, 0)
    accounts.forget_others({"r": None})
    accounts.add(output(2, 3), 3, 1)
    accounts.forget_others({})
    last = accounts.add(output(4, finish=FinishReason.STOP), 0, 0)
    assert last.to_dict()["num_spec_steps"] == 0
