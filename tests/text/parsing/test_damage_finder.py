"""Drops, doubles, inserts and misspells pieces of answers in every format.

No damaged answer holds a valid call that the answer does not hold, unless the damage is inside a
value, where nobody can know of it, or adds a whole call. The answers are the golden cases whose
source is ``shapes``. It is read a token at a time: test_parser_properties.py tries other cuttings.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.text.parsing.damages import Change, canonical, find_structural
from tests.text.parsing.golden_corpus import Case, corpus, usual_tools, written_case
from tests.text.parsing.golden_cuts import few
from tests.text.parsing.golden_reading import (
    as_others_send,
    fold,
    main_parser,
    output,
    read,
)


def rewritten(case: Case, output: str) -> Case:
    """The case with another output."""
    calls = [(call.name, call.arguments, call.outcome) for call in case.calls]
    thinks = as_others_send(case).format.reasoning_parser
    parser = main_parser(case)
    assert parser
    return written_case(parser, output, calls, case.content, case.reasoning, thinks=thinks)


ANSWERS = {case.id: case for case in corpus() if case.source == "shapes"}


def find_wrong(name: str, num: int) -> list[Change]:
    """Structural damages of an answer after which a call is valid that is not in it."""
    case = ANSWERS[name]
    pairs = [(call.name, call.arguments) for call in case.calls]
    wanted = Counter(canonical(*pair) for pair in pairs)
    changes = find_structural(case.output, pairs)
    random.Random(name).shuffle(changes)
    wrong = []
    for change in changes[:num]:
        damaged = rewritten(case, change.output)
        ids, eos, own = output(damaged)
        events, _ = read(damaged, next(few(ids, own, eos)), main_parser(damaged))
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
