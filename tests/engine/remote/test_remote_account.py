"""A worker's account laid over its chunks: its own numbers, whatever was merged or cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglegate.engine.remote.probe import SpeculationAccount, lay_decode_steps
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.types import DecodeStep, UndraftedReason

PLAIN = DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED)


def verified(drafted: int, accepted: int, cut: int = 0) -> DecodeStep:
    return DecodeStep(drafted, accepted, accepted + (not cut), cut=cut)


def told(*steps: tuple[int, int]) -> SpeculationAccount:
    return SpeculationAccount(3, steps)


def test_the_last_step_is_cut():
    assert lay_decode_steps([1, 4, 2], told((3, 3), (3, 3))) == (
        verified(3, 3),
        verified(3, 2, cut=1),
    )


def test_steps_without_a_draft_are_found_by_the_size_of_their_chunks():
    assert lay_decode_steps([1, 1, 4, 1], told((3, 3))) == (PLAIN, verified(3, 3), PLAIN)


def test_vllms_padding_makes_the_first_token_a_verify_step():
    assert lay_decode_steps([1, 4, 2], told((3, 0), (3, 3), (3, 1))) == (
        verified(3, 0),
        verified(3, 3),
        verified(3, 1),
    )


def test_all_at_once():
    assert lay_decode_steps([9], told((3, 3), (3, 1), (3, 1))) == (
        verified(3, 3),
        verified(3, 1),
        verified(3, 1),
    )


def test_nothing_came():
    assert lay_decode_steps([], told()) == ()
    assert lay_decode_steps([1], told()) == ()


def test_a_histogram_gives_the_sums():
    said = {
        "num_spec_tokens": 3,
        "num_draft_tokens": 11,
        "acceptance_histogram": [1, 0, 2, 1],
        "num_spec_steps": 4,
    }
    totals = sum_steps(
        lay_decode_steps([1, 3, 1, 4, 3], SpeculationAccount.read(said, 12)), first_tokens=1
    )
    assert (totals.verify_steps, totals.proposed, totals.accepted) == (4, 11, 7)
    assert (totals.tokens, totals.imbalance) == (12, 0)


@st.composite
def answers(draw):
    """An engine's steps as (drafted, accepted), 0 drafted for a plain step, and the sizes of their
    chunks."""
    depth = draw(st.integers(1, 5))
    one = st.integers(0, depth).flatmap(
        lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))
    )
    steps = draw(st.lists(one, max_size=30))
    sizes = [1, *(accepted + 1 for _, accepted in steps)]
    cut = draw(st.integers(0, sizes[-1] - 1)) if steps and steps[-1][0] else 0
    sizes[-1] -= cut
    merged = [sizes[0]]
    for size in sizes[1:]:
        if draw(st.integers(0, 9)) == 0:
            merged[-1] += size
        else:
            merged.append(size)
    return steps, merged


@given(answers(), st.booleans())
def test_the_workers_own_numbers_always(answer, tells_plain):
    steps, sizes = answer
    said = [step for step in steps if step[0] or tells_plain]
    laid = lay_decode_steps(sizes, told(*said))
    totals = sum_steps(laid, first_tokens=sum(sizes) - sum(step.delivered for step in laid))
    assert totals.verify_steps == sum(1 for drafted, _ in steps if drafted)
    assert totals.proposed == sum(drafted for drafted, _ in steps)
    assert totals.accepted + totals.cut == sum(accepted for _, accepted in steps)
    assert totals.tokens == sum(sizes)
    assert totals.first_tokens in (0, 1)


@given(answers())
def test_unmerged_and_told_in_full_it_is_exact(answer):
    steps, _ = answer
    sizes = [1, *(accepted + 1 for _, accepted in steps)]
    laid = lay_decode_steps(sizes, told(*steps))
    assert [(step.drafted, step.accepted) for step in laid] == list(steps)
    assert all(step.cut == 0 for step in laid)
