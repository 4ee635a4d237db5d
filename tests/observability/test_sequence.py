from __future__ import annotations

from eaglegate.engine.events import Finish, LogprobsDelta, Usage
from eaglegate.engine.types import DecodeStep, PositionLogprobs, Step, TokenLogprob
from eaglegate.observability.sequence import PhaseShare, SequenceTimeline
from eaglegate.text.events import (
    ContentDelta,
    FinishReason,
    Outcome,
    Phase,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)


class Ticks:
    """A clock that moves one second per look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def verify(accepted: int, drafted: int = 3) -> Step:
    step = DecodeStep(drafted, accepted, accepted + 1)
    return Step(tuple(range(accepted + 1)), decode=(step,))


def finish(completion: int) -> Finish:
    return Finish("stop", Usage(prompt=5, completion=completion))


def test_a_step_belongs_to_the_phase_its_tokens_came_out_in():
    seen = SequenceTimeline(Ticks())
    seen.add_step(Step((1,)))
    seen.add_event(ReasoningDelta("hm"))
    seen.add_step(verify(2))
    seen.add_event(ReasoningDelta("so"))
    seen.add_event(ContentDelta("a"))
    seen.add_step(verify(0))  # held back: a marker begins
    seen.add_step(verify(1))
    seen.add_event(ToolCallStart(0, "id", "f"))
    seen.add_step(verify(3))
    seen.add_event(ToolCallEnd(0, Outcome.VALID))
    seen.add_event(finish(11))
    shares, gaps = seen.settle(ended=True)
    assert gaps == [1.0] * 4
    assert {phase: share.totals.verify_steps for phase, share in shares.items()} == {
        Phase.REASONING: 1,
        Phase.TOOL_CALL: 3,
    }
    assert shares[Phase.REASONING].totals.accepted == 2
    assert shares[Phase.TOOL_CALL].totals.accepted == 4
    assert [share.tokens for share in shares.values()] == [4, 7]
    assert [share.timed_tokens for share in shares.values()] == [3, 7]
    assert [share.seconds for share in shares.values()] == [1.0, 3.0]
    assert all(share.totals.imbalance == 0 for share in shares.values())
    assert seen.tools == [Outcome.VALID]


def test_held_back_to_the_end_belongs_to_the_last_phase():
    seen = SequenceTimeline(Ticks())
    seen.add_step(Step((1,)))
    seen.add_event(ReasoningDelta("a"))
    seen.add_event(ContentDelta("b"))
    seen.add_step(verify(1))
    assert seen.settle(ended=True)[0][Phase.CONTENT].totals.verify_steps == 1


def test_the_newest_steps_wait_so_that_a_stop_can_take_back():
    seen = SequenceTimeline(Ticks())
    seen.add_step(Step((1,)))
    seen.add_event(ContentDelta("a"))
    seen.add_step(verify(3))
    early, _ = seen.settle()
    assert early[Phase.CONTENT].tokens == 1
    seen.add_event(ContentDelta("b"))
    seen.add_event(finish(2))  # a stop string: one token of the last step stands
    late = seen.settle(ended=True)[0][Phase.CONTENT]
    assert (late.tokens, late.totals.accepted, late.totals.cut) == (1, 1, 2)
    assert late.totals.lost_bonus == 1
    assert late.totals.imbalance == 0
    assert seen.tokens == 2
    assert seen.settle(ended=True) == ({}, [])


def test_tpot_is_absent_for_one_token_and_the_mean_gap_per_token_otherwise():
    seen = SequenceTimeline(Ticks())
    seen.add_step(Step((1,)))
    assert seen.settle(ended=True)[1] == []
    assert seen.tpot is None
    seen.add_step(verify(3))
    assert seen.settle(ended=True)[1] == [1.0]
    assert seen.tpot == 1.0 / 4


def test_an_engine_that_does_not_report_has_no_acceptance():
    seen = SequenceTimeline(Ticks())
    for at in range(4):
        seen.add_step(Step((at,), finish=FinishReason.STOP if at == 3 else None))
        seen.add_event(ContentDelta("x"))
    share = seen.settle(ended=True)[0][Phase.CONTENT]
    assert (share.tokens, share.timed_tokens) == (4, 3)
    assert share.totals.acceptance_length is None
    assert share.totals.fallback_ratio is None


def test_settling_often_tells_the_same_as_settling_once():
    often, once = SequenceTimeline(Ticks()), SequenceTimeline(Ticks())
    told: dict[Phase, PhaseShare] = {}
    gaps: list[float] = []

    def settle(**how) -> None:
        shares, more = often.settle(**how)
        gaps.extend(more)
        for phase, share in shares.items():
            told[phase] = told.get(phase, PhaseShare()) + share

    kinds = [
        ReasoningDelta("a"),
        ContentDelta("b"),
        None,
        ContentDelta("b"),
        ToolCallStart(0, "", ""),
    ]
    for at in range(40):
        for seen in (often, once):
            seen.add_step(verify(at % 4) if at else Step((1,)))
            if (event := kinds[at // 8]) is not None:
                seen.add_event(event)
        if not at % 3:
            settle()
    settle(ended=True)
    shares, all_gaps = once.settle(ended=True)
    assert {phase: share.totals for phase, share in told.items()} == {
        phase: share.totals for phase, share in shares.items()
    }
    assert set(told) == set(Phase)
    assert gaps == all_gaps == [1.0] * 39
    assert often.tpot == once.tpot


def test_logprobs_are_not_kept_and_show_no_tokens():
    seen = SequenceTimeline(Ticks())
    positions = (PositionLogprobs(TokenLogprob(1, -0.1)),)
    seen.add_step(Step((1,), logprobs=positions))
    seen.add_event(LogprobsDelta(positions))
    seen.add_event(ReasoningDelta("x"))
    seen.add_step(Step((2,), (DecodeStep(1, 0, 1),), logprobs=positions))
    seen.add_event(LogprobsDelta(positions))
    assert not any(step.logprobs for step in seen._steps)
    seen.add_event(ContentDelta("y"))
    shares, _ = seen.settle(ended=True)
    assert shares[Phase.CONTENT].tokens == shares[Phase.REASONING].tokens == 1


def at_the_end(steps: list[Step], *, told: bool = True) -> list[Step]:
    """``steps`` as an engine gives them that learns of their account with the last one."""
    account = tuple(decode for step in steps for decode in step.decode)
    bare = [Step(step.token_ids) for step in steps]
    return [*bare[:-1], Step(bare[-1].token_ids, decode=account if told else ())]


def test_an_account_at_the_end_goes_to_the_phases_its_steps_were_in():
    live, late = SequenceTimeline(Ticks()), SequenceTimeline(Ticks(), late=True)
    steps = [Step((1,)), verify(2), verify(0), verify(3)]
    events = [ReasoningDelta("a"), ReasoningDelta("b"), ContentDelta("c"), ContentDelta("d")]
    for sequence, given in ((live, steps), (late, at_the_end(steps))):
        for step, event in zip(given, events, strict=True):
            sequence.add_step(step)
            sequence.add_event(event)
    assert late.settle() == ({}, [])
    assert late.settle(ended=True) == live.settle(ended=True)


def test_an_answer_broken_off_before_its_account_has_tokens_nobody_explains():
    seen = SequenceTimeline(Ticks(), late=True)
    for step in at_the_end([Step((1,)), verify(2), verify(3)], told=False):
        seen.add_step(step)
        seen.add_event(ContentDelta("a"))
    shares, _ = seen.settle(ended=True)
    totals = shares[Phase.CONTENT].totals
    assert (totals.tokens, totals.first_tokens, totals.verify_steps) == (8, 1, 0)
    assert totals.imbalance == 7
