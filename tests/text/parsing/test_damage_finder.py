"""Drops, doubles, inserts and misspells pieces of answers in every format.

The damaged answers read alike at every cutting. None holds a valid call that the answer does not
hold, unless the damage is inside a value, where nobody can know of it, or adds a whole call. The
answers are the golden cases whose source is ``shapes``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from eaglegate.text.events import FinishReason
from tests.text.parsing.damages import PIECE, STRAY, Change, canonical, find_structural
from tests.text.parsing.golden_corpus import Case, corpus, usual_tools, written_case
from tests.text.parsing.golden_reading import (
    as_others_send,
    fold,
    joined,
    main_parser,
    read_in_ways,
)


def rewritten(case: Case, output: str, finish: FinishReason = FinishReason.STOP) -> Case:
    """The case with another output."""
    calls = [(call.name, call.arguments, call.outcome) for call in case.calls]
    thinks = as_others_send(case).format.reasoning_parser
    parser = main_parser(case)
    assert parser
    return written_case(
        parser, output, calls, case.content, case.reasoning, thinks=thinks, finish=finish
    )


ANSWERS = {case.id: case for case in corpus() if case.source == "shapes"}


def damaged(output: str, dice: random.Random) -> Iterator[str]:
    """The answer with one piece dropped, doubled or inserted, without end."""
    pieces = PIECE.findall(output)
    strays = [*dict.fromkeys(piece for piece in pieces if not piece.isalnum()), *STRAY]
    while True:
        at = dice.randrange(len(pieces))
        new: tuple[str, ...] = dice.choice(
            [(), (pieces[at], pieces[at]), (dice.choice(strays), pieces[at])]
        )
        yield "".join([*pieces[:at], *new, *pieces[at + 1 :]])


def check_damage(name: str, num: int) -> None:
    case, dice = ANSWERS[name], random.Random(name)
    for number, output in zip(range(num), damaged(case.output, dice), strict=False):
        finish = dice.choice([FinishReason.STOP, FinishReason.LENGTH])
        answers = read_in_ways(rewritten(case, output, finish), number)
        first, *others = (joined(events, written_ids=False) for events in answers)
        assert all(other == first for other in others), output


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_damage_reads_alike_at_every_cutting(name: str) -> None:
    check_damage(name, 40)


def find_wrong(name: str, num: int) -> list[Change]:
    """Structural damages of an answer after which a call is valid that is not in it."""
    case = ANSWERS[name]
    pairs = [(call.name, call.arguments) for call in case.calls]
    wanted = Counter(canonical(*pair) for pair in pairs)
    changes = find_structural(case.output, pairs)
    random.Random(name).shuffle(changes)
    wrong = []
    for change in changes[:num]:
        events = next(read_in_ways(rewritten(case, change.output), 0))
        valid = [call for call in fold(events, "").calls if call.outcome == "valid"]
        got = Counter(canonical(call.name, call.arguments) for call in valid)
        if got - wanted and not _is_call(change):
            wrong.append(change)
    return wrong


def _is_call(change: Change) -> bool:
    """Whether a tag was added that opens a call of an offered tool."""
    adds = change.kind in ("insert", "double")
    return adds and any(f"={tool}>" in change.piece for tool in usual_tools())


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_no_structural_damage_is_valid_with_other_arguments(name: str) -> None:
    assert find_wrong(name, 150) == []
