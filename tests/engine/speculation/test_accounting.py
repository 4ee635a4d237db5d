import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.speculation.accounts.accounting import (
    Account,
    spread_account,
    sum_steps,
    trim_step,
)
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import DecodeStep, Drafter, Step, UndraftedReason
from eaglegate.text.events import FinishReason


def verify(drafted: int, accepted: int) -> DecodeStep:
    return DecodeStep(drafted, accepted, accepted + 1)


def plain(reason: UndraftedReason = UndraftedReason.OFF) -> DecodeStep:
    return DecodeStep(0, 0, 1, undrafted=reason)


def account(*steps: DecodeStep) -> Account:
    taken = Account()
    taken.add(Step((7,)))
    for step in steps:
        taken.add(Step((7,) * step.delivered, decode=(step,)))
    return taken


def test_normative_numbers() -> None:
    steps = (verify(3, 3), verify(3, 1), verify(3, 0), plain(), plain(UndraftedReason.REFUSED))
    totals = account(*steps).totals
    assert (totals.tokens, totals.verify_steps, totals.proposed, totals.accepted) == (10, 3, 9, 4)
    assert (totals.rejected, totals.off, totals.undrafted, totals.plain_steps) == (1, 1, 1, 2)
    assert totals.accepted + totals.verify_steps + totals.plain_steps == totals.tokens - 1
    assert totals.acceptance_length == 1 + 4 / 3
    assert totals.acceptance_rate == 4 / 9
    assert totals.accepted_at == (2, 1, 1)
    assert totals.acceptance_per_position == (2 / 3, 1 / 3, 1 / 3)
    assert totals.conditional_acceptance == (2 / 3, 1 / 2, 1.0)
    assert totals.histogram == (1, 1, 0, 1)
    assert totals.fallback_ratio == 3 / 5
    assert totals.fallback_by_reason == {"rejected": 1 / 5, "undrafted": 1 / 5, "off": 1 / 5}
    assert totals.imbalance == 0


def test_lookups_are_counted_apart() -> None:
    lookup = DecodeStep(8, 5, 6, drafter=Drafter.LOOKUP)
    totals = account(verify(3, 1), lookup, lookup).totals
    assert (totals.verify_steps, totals.proposed, totals.accepted) == (3, 19, 11)
    assert (totals.lookup_steps, totals.lookup_proposed, totals.lookup_accepted) == (2, 16, 10)
    assert (totals + totals).lookup_accepted == 20
    assert totals.imbalance == 0
    assert trim_step(lookup, 3) == DecodeStep(8, 3, 3, 2, drafter=Drafter.LOOKUP)


def test_ratios_of_nothing_are_absent() -> None:
    empty = Totals()
    assert empty.acceptance_length is None
    assert empty.acceptance_rate is None
    assert empty.fallback_ratio is None
    assert empty.fallback_by_reason == {}
    assert empty.acceptance_per_position == ()
    undrafted = account(plain()).totals
    assert undrafted.acceptance_length is None
    assert undrafted.fallback_ratio == 1


def test_conditional_is_absent_after_a_position_never_accepted() -> None:
    assert account(verify(3, 0)).totals.conditional_acceptance == (0.0, None, None)


def test_one_prefill_token_and_nothing_else() -> None:
    totals = account().totals
    assert (totals.tokens, totals.first_tokens, totals.decode_steps) == (1, 1, 0)
    assert totals.imbalance == 0


def test_a_step_cut_by_the_token_limit() -> None:
    """Three accepted, two delivered: no bonus, one cut, and the step is not a rejected one."""
    totals = account(DecodeStep(3, 2, 2, cut=1)).totals
    assert (totals.tokens, totals.accepted, totals.cut, totals.lost_bonus) == (3, 2, 1, 1)
    assert totals.rejected == 0
    assert totals.imbalance == 0


@pytest.mark.parametrize(
    ("delivered", "want"),
    [
        (9, DecodeStep(3, 3, 4)),
        (8, DecodeStep(3, 3, 3)),
        (7, DecodeStep(3, 2, 2, cut=1)),
        (5, DecodeStep(3, 0, 0, cut=3)),
    ],
)
def test_trim_takes_the_bonus_then_drafts(delivered: int, want: DecodeStep) -> None:
    taken = account(verify(3, 3), verify(3, 3))
    taken.trim(delivered)
    assert taken.decode_steps == (verify(3, 3), want)
    assert taken.tokens == delivered


def test_trim_down_to_nothing() -> None:
    taken = account(verify(3, 1), plain())
    taken.trim(0)
    totals = taken.totals
    assert (totals.tokens, totals.first_tokens, totals.accepted, totals.cut) == (0, 0, 0, 1)
    assert totals.imbalance == 0


def test_trim_beyond_what_came_changes_nothing() -> None:
    taken = account(verify(3, 1))
    before = taken.totals
    taken.trim(99)
    assert taken.totals == before


def test_merged_steps_and_the_first_token_in_one() -> None:
    taken = Account()
    taken.add(Step((1, 2, 3, 4), decode=(verify(3, 1), plain()), finish=FinishReason.STOP))
    assert taken.totals == account(verify(3, 1), plain()).totals


def test_an_engine_that_does_not_report_shows_an_imbalance() -> None:
    taken = Account()
    taken.add(Step((1, 2, 3)))
    assert taken.totals.imbalance == 2


STEPS = st.lists(
    st.one_of(
        st.integers(1, 7).flatmap(
            lambda k: st.integers(0, k).map(lambda accepted: verify(k, accepted))
        ),
        st.sampled_from([plain(), plain(UndraftedReason.REFUSED)]),
    ),
    max_size=12,
)


@pytest.mark.thorough
@given(STEPS, st.integers(0, 100))
def test_identity_holds_however_the_end_was_cut(steps: list[DecodeStep], keep: int) -> None:
    taken = account(*steps)
    proposed, whole = taken.totals.proposed, taken.totals
    taken.trim(keep)
    totals = taken.totals
    assert totals.tokens == min(keep, whole.tokens)
    assert totals.imbalance == 0
    assert totals.proposed == proposed
    assert totals.accepted + totals.cut == whole.accepted
    assert totals.rejected == whole.rejected
    assert sum(totals.histogram) == totals.verify_steps
    assert sum(totals.accepted_at) == totals.accepted
    if totals.decode_steps:
        assert totals.fallback_ratio == pytest.approx(sum(totals.fallback_by_reason.values()))


@given(STEPS, STEPS)
def test_sums_of_accounts(one: list[DecodeStep], other: list[DecodeStep]) -> None:
    both = account(*one).totals + account(*other).totals
    assert both == sum_steps([*one, *other], first_tokens=2, requests=2)
    assert both.imbalance == 0
    assert both + Totals() == both


def test_cut_step_keeps_the_reason() -> None:
    assert trim_step(plain(), 1) == DecodeStep(0, 0, 0, undrafted=UndraftedReason.OFF)


def test_a_step_with_one_accepted_draft_is_not_rejected() -> None:
    totals = account(verify(3, 0), verify(3, 0), verify(3, 1)).totals
    assert totals.rejected == 2


def test_decode_steps_alone_have_no_first_token() -> None:
    totals = sum_steps([verify(3, 1)])
    assert (totals.requests, totals.tokens, totals.first_tokens) == (1, 2, 0)
    assert totals.imbalance == 0


def test_without_drafts_there_are_no_positions() -> None:
    totals = account(plain()).totals
    assert (totals.accepted_at, totals.proposed_at, totals.histogram) == ((), (), (0,))


TWICE = DecodeStep(3, 1, 2)
LATE = (DecodeStep(3, 2, 3), plain(), TWICE, DecodeStep(3, 0, 0, cut=2))


@pytest.mark.parametrize(
    ("steps", "laid"),
    [
        pytest.param(((1, ()), (3, ()), (1, ()), (2, LATE)), (0, 1, 1, 2), id="at once"),
        pytest.param(((2, ()), (3, (TWICE, TWICE))), (0, 2), id="into the next step"),
        pytest.param(((1, ()), (2, (TWICE,))), (0, 1), id="step by step"),
        pytest.param(((5, ()), (1, (TWICE, plain()))), (1, 1), id="many tokens"),
        pytest.param(((1, ()), (1, (verify(3, 1), verify(2, 1), verify(1, 1)))), (2, 1), id="few"),
        pytest.param(((2, (plain(),)), (1, ()), (1, (TWICE,))), (1, 0, 1), id="early and late"),
        pytest.param((), (), id="nothing"),
    ],
)
def test_a_late_account_is_spread_over_its_steps(
    steps: tuple[tuple[int, tuple[DecodeStep, ...]], ...], laid: tuple[int, ...]
) -> None:
    """In its order: ``laid`` decode steps go to each step."""
    spread = spread_account([Step((7,) * tokens, decode=decode) for tokens, decode in steps])
    assert tuple(len(step.decode) for step in spread) == laid
    told = [one for _, decode in steps for one in decode]
    assert [one for step in spread for one in step.decode] == told
