"""One request over several lives of its engine: each token once, each account once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from eaglegate.engine.speculation.accounts.accounting import Account, sum_steps
from eaglegate.engine.supervision.continuation import (
    Continuation,
    ReplayDiverged,
    is_resumable,
    skip_tokens,
)
from eaglegate.engine.supervision.policy import RecoveryOutcome
from eaglegate.engine.types import (
    Constraint,
    DecodeStep,
    EngineRequest,
    PositionLogprobs,
    RepetitionStop,
    Sampling,
    Step,
    TokenLogprob,
    UndraftedReason,
)
from eaglegate.text.events import FinishReason
from eaglegate.text.media.image import Image

ANSWER = tuple(range(100, 124))
PLAIN = Sampling(max_tokens=len(ANSWER), temperature=0)
PENALISED = replace(PLAIN, presence_penalty=0.5)


def request(sampling: Sampling = PLAIN, **fields: object) -> EngineRequest:
    return EngineRequest("r", (1, 2, 3), sampling, **fields)


def life(sent: EngineRequest, cuts: Sequence[int]) -> list[Step]:
    """An engine's answer to ``sent``: the rest of ANSWER, in steps of ``cuts`` tokens."""
    left = ANSWER[len(sent.prompt) - 3 :]
    assert sent.sampling.max_tokens == len(left)
    steps, at = [], 0
    sizes = iter(cuts)
    while at < len(left):
        ids = left[at : at + next(sizes, 1)]
        decode = (DecodeStep(len(ids) + 1, len(ids) - 1, len(ids)),) if at else ()
        if not at and len(ids) > 1:  # the prefill token came with a whole step behind it
            decode = (DecodeStep(len(ids), len(ids) - 2, len(ids) - 1),)
        at += len(ids)
        chances = tuple(PositionLogprobs(TokenLogprob(i, -1.0, 1), ()) for i in ids)
        steps.append(
            Step(
                ids,
                decode=decode,
                logprobs=chances,
                cached_tokens=2 if at == len(ids) else None,
                finish=FinishReason.LENGTH if at == len(left) else None,
            )
        )
    return steps


sizes = st.lists(st.integers(1, 5), max_size=30)


@given(
    lives=st.lists(st.tuples(sizes, st.integers(0, 30)), max_size=4),
    last=sizes,
    sampling=st.sampled_from([PLAIN, PENALISED, replace(PLAIN, temperature=1.0, seed=7)]),
)
def test_each_token_and_each_account_comes_once(lives, last, sampling):
    continuation = Continuation(request(sampling))
    passed: list[Step] = []
    left_out: list[DecodeStep] = []
    replays = sampling is PENALISED
    for cuts, die_after in [*lives, (last, 1000)]:
        if continuation.is_complete:
            break
        begun = any(step.token_ids for step in passed)
        replayed = (
            (RecoveryOutcome.REPLAYED if replays else RecoveryOutcome.RESUMED)
            if begun
            else RecoveryOutcome.RERUN
        )
        assert continuation.outcome is replayed
        sent = continuation.next_request()
        for step in life(sent, cuts)[:die_after]:
            new = continuation.take(step)
            if new is not None:
                passed.append(new)
                assert len(new.logprobs) == len(new.token_ids)
        left_out += continuation.pop_skipped()
        assert continuation.pop_skipped() == []
    assert tuple(i for step in passed for i in step.token_ids) == ANSWER
    assert [p.chosen.token_id for step in passed for p in step.logprobs] == list(ANSWER)
    account = Account()
    for step in passed:
        account.add(step)
    assert account.totals.imbalance == 0
    assert account.totals.first_tokens == 1
    assert all(step.finish is None for step in passed[:-1])
    if not replays:
        assert not left_out


def test_steps_that_come_again_are_left_out_whole_and_counted():
    penalised = replace(PENALISED, prompt_logprobs=3)
    continuation = Continuation(request(penalised))
    assert continuation.next_request().sampling.prompt_logprobs == 3
    first = life(request(penalised), [1, 3, 3])[:3]
    for step in first:
        assert continuation.take(step) is step
    sent = continuation.next_request()
    assert sent.prompt == (1, 2, 3)
    assert sent.sampling.prompt_logprobs is None
    again = life(sent, [1, 3, 3])
    assert [continuation.take(step) for step in again[:3]] == [None, None, None]
    assert sum_steps(continuation.pop_skipped()).accepted == sum(
        decode.accepted for step in first for decode in step.decode
    )
    assert continuation.take(again[3]) == replace(again[3], cached_tokens=None)


def test_a_resumed_request_asks_for_the_rest_alone():
    sampling = replace(PLAIN, min_tokens=10, prompt_logprobs=3)
    continuation = Continuation(request(sampling))
    assert continuation.next_request().sampling.prompt_logprobs == 3
    for step in life(request(sampling), [1, 4])[:2]:
        continuation.take(step)
    sent = continuation.next_request()
    assert sent.prompt == (1, 2, 3, *ANSWER[:5])
    assert sent.sampling.max_tokens == len(ANSWER) - 5
    assert sent.sampling.min_tokens == 5
    assert sent.sampling.prompt_logprobs is None
    assert continuation.take(Step((105, 106, 107, 108, 109, 110))) is not None
    assert continuation.next_request().sampling.min_tokens == 0


@pytest.mark.parametrize(
    ("depth", "reason"),
    [(0, UndraftedReason.OFF), (3, UndraftedReason.REFUSED), (None, UndraftedReason.REFUSED)],
)
def test_the_second_prefills_token_is_a_plain_decode_step(depth, reason):
    continuation = Continuation(request(depth=depth))
    continuation.next_request()
    continuation.take(Step((100,)))
    continuation.next_request()
    assert continuation.take(Step((), cached_tokens=2)) is None
    step = continuation.take(Step((101,), cached_tokens=2))
    assert step.decode == (DecodeStep(0, 0, 1, undrafted=reason),)
    assert step.cached_tokens is None
    assert continuation.take(Step((102,), decode=(DecodeStep(3, 0, 1),))).decode == (
        DecodeStep(3, 0, 1),
    )
    assert continuation.take(Step((103,))).decode == (), "the engine accounts for it later"


def test_without_accounts_none_is_made_up():
    continuation = Continuation(request(), accounts=False)
    continuation.next_request()
    continuation.take(Step((100,)))
    continuation.next_request()
    assert continuation.take(Step((101,))).decode == ()


@pytest.mark.parametrize(
    "again",
    [
        [Step((100, 999))],
        [Step((999,))],
        [Step((100,), finish=FinishReason.STOP)],
        [Step((100,)), Step((101, 999, 103))],
    ],
)
def test_a_replay_that_comes_out_otherwise_is_noticed(again):
    continuation = Continuation(request(PENALISED))
    continuation.next_request()
    continuation.take(Step((100, 101, 102)))
    continuation.next_request()
    with pytest.raises(ReplayDiverged):
        for step in again:
            assert continuation.take(step) is None


def test_a_replay_may_end_with_the_last_token_that_was_delivered():
    continuation = Continuation(request(PENALISED))
    continuation.next_request()
    continuation.take(Step((100, 101)))
    continuation.next_request()
    step = continuation.take(Step((100, 101), finish=FinishReason.STOP, stop_token=5))
    assert (step.token_ids, step.finish, step.stop_token) == ((), FinishReason.STOP, 5)


def test_an_account_for_the_whole_answer_stays_whole():
    continuation = Continuation(request(PENALISED))
    continuation.next_request()
    continuation.take(Step((100, 101)))
    continuation.next_request()
    assert continuation.take(Step((100, 101))) is None
    whole = (DecodeStep(3, 1, 2), DecodeStep(3, 1, 2))
    step = continuation.take(Step((102,), decode=whole, finish=FinishReason.STOP))
    assert step.decode == whole
    continuation = Continuation(request(PENALISED))
    continuation.next_request()
    continuation.take(Step((100, 101)))
    continuation.next_request()
    step = continuation.take(Step((100, 101, 102), decode=whole, finish=FinishReason.STOP))
    assert step.decode == whole
    assert continuation.pop_skipped() == []


def test_a_resumed_answer_explains_what_its_second_engine_made():
    """An account at the end of the answer is of the tokens of that engine alone."""
    continuation, account, decode = Continuation(request()), Account(), DecodeStep(3, 1, 2)
    continuation.next_request()
    continuation.take(Step((100,)))
    continuation.take(Step((101, 102)))
    assert continuation.next_request().prompt == (1, 2, 3, 100, 101, 102)
    account.add(continuation.take(Step((103, 104, 105))))
    end = Step((106, 107), decode=(decode, decode), finish=FinishReason.STOP)
    account.add(continuation.take(end))
    totals = account.totals
    assert (totals.verify_steps, totals.undrafted) == (2, 1)
    assert (totals.tokens, totals.imbalance) == (5, 0)


def test_a_seeded_answer_goes_on_behind_its_tokens():
    continuation = Continuation(request(replace(PLAIN, temperature=1.0, seed=7)))
    continuation.next_request()
    continuation.take(Step((100,)))
    assert continuation.outcome is RecoveryOutcome.RESUMED
    resumed = continuation.next_request()
    assert (resumed.prompt, resumed.sampling.seed) == ((1, 2, 3, 100), 7)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (request(), True),
        (request(replace(PLAIN, temperature=1.0)), True),
        (request(replace(PLAIN, seed=1)), True),
        (request(replace(PLAIN, temperature=1.0, seed=1)), True),
        (request(PENALISED), False),
        (request(replace(PLAIN, frequency_penalty=-1.0)), False),
        (request(replace(PLAIN, bad_words=("a b",))), False),
        (request(replace(PLAIN, thinking_token_budget=9)), False),
        (request(replace(PLAIN, repetition=RepetitionStop(3, 1, 4))), False),
        (request(replace(PLAIN, min_p=0.1, logit_bias={1: 2.0}, allowed_token_ids=(1,))), True),
        (request(constraint=Constraint("regex", "a+")), False),
    ],
)
def test_only_requests_determined_by_their_tokens_are_resumed(given, answer):
    assert is_resumable(given) is answer


def test_a_sampled_answer_that_will_be_replayed_gets_a_seed():
    sampled = replace(PENALISED, temperature=1.0)
    answers = [Continuation(request(sampled)) for _ in range(8)]
    seeds = [answer.next_request().sampling.seed for answer in answers]
    assert seeds == [answer.next_request().sampling.seed for answer in answers]
    assert len(set(seeds)) > 1
    assert None not in seeds
    assert Continuation(request(replace(sampled, seed=3))).next_request().sampling.seed == 3
    assert (
        Continuation(request(replace(PLAIN, temperature=1.0))).next_request().sampling.seed is None
    )
    assert Continuation(request(PENALISED)).next_request().sampling.seed is None


def test_complete_when_only_the_end_is_missing():
    continuation = Continuation(request())
    continuation.next_request()
    for step in life(request(), [8, 8, 7]):
        assert not continuation.is_complete
        continuation.take(step)
    assert continuation.is_complete


@pytest.mark.parametrize(
    ("tokens", "left"),
    [
        (0, [DecodeStep(3, 3, 4), DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)]),
        (1, [DecodeStep(3, 3, 4), DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)]),
        (2, [DecodeStep(2, 2, 3), DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)]),
        (
            4,
            [
                DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED),
                DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF),
            ],
        ),
        (5, [DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)]),
        (6, []),
    ],
)
def test_accounts_behind_so_many_tokens(tokens, left):
    decode = (DecodeStep(3, 3, 4), DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF))
    assert list(skip_tokens(Step((1, 2, 3, 4, 5, 6), decode=decode), tokens)) == left


def test_images_stay_with_the_prompt_that_has_their_placeholders() -> None:
    """The engine replaces the placeholders again, so the prompt stays as it was sent."""
    image = Image(b"", "png", 28, 28, "0")
    begun = Continuation(request(images=(image,), expanded_length=60))
    assert begun.next_request().num_prompt == 60
    begun.take(Step(ANSWER[:5]))
    rest = begun.next_request()
    assert begun.outcome is RecoveryOutcome.RESUMED
    assert rest.prompt == (1, 2, 3, *ANSWER[:5])
    assert (rest.images, rest.num_prompt) == ((image,), 65)
    text = Continuation(request())
    text.take(Step(ANSWER[:5]))
    assert text.next_request().num_prompt == 8
