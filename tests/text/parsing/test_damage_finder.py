"""Drops, doubles, inserts and misspells pieces of answers in every format.

The damaged answers read alike at every cutting. None holds a valid call that the answer does not
hold, unless the damage is inside a value, where nobody can know of it, or adds a whole call. The
answers are those of ``shapes.yaml``.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from eaglegate.text.events import FinishReason
from tests.text.parsing.damages import PIECE, STRAY, Change, canonical, find_structural
from tests.text.parsing.golden_reading import joined
from tests.text.parsing.test_damaged import Damage, check, read_events, read_once
from tests.text.parsing.test_reported import SHAPES, damage_of

TOOLS = SHAPES["tools"]
ANSWERS = {case["name"]: damage_of(case, TOOLS) for case in SHAPES["ordinary"]}
ENCODED = {
    name: case
    for name, case in ANSWERS.items()
    if any(len(arguments) > 2 and arguments in case.output for _, arguments, _ in case.calls)
}
"""Answers that hold their arguments exactly as the client gets them."""


def encode_twice(case: Damage, between: str) -> Damage:
    """The same call with its arguments in a string."""
    output, calls = case.output, []
    for name, arguments, outcome in case.calls:
        if arguments in output and len(arguments) > 2:
            spaced = arguments.replace(", ", between)
            output = output.replace(arguments, json.dumps(spaced, ensure_ascii=False), 1)
            arguments = spaced
        calls.append((name, arguments, outcome))
    return replace(case, output=output, calls=tuple(calls))


@pytest.mark.parametrize("between", [", ", ",", ", \n  "], ids=["blank", "none", "line"])
@pytest.mark.parametrize("name", ENCODED)
def test_arguments_that_are_encoded_twice(name: str, between: str) -> None:
    check(encode_twice(ANSWERS[name], between))


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
    for _, output in zip(range(num), damaged(case.output, dice), strict=False):
        finish = dice.choice([FinishReason.STOP, FinishReason.LENGTH])
        answers = read_events(replace(case, output=output, finish=finish))
        first, *others = (joined(events, written_ids=False) for events in answers)
        assert all(other == first for other in others), output


@pytest.mark.parametrize("name", ANSWERS)
def test_damage_reads_alike_at_every_cutting(name: str) -> None:
    check_damage(name, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_much_damage_reads_alike_at_every_cutting(name: str) -> None:
    check_damage(name, 100)


def find_wrong(name: str, num: int) -> list[Change]:
    """Structural damages of an answer after which a call is valid that is not in it."""
    case = ANSWERS[name]
    pairs = [(called, arguments) for called, arguments, _ in case.calls]
    wanted = Counter(canonical(*pair) for pair in pairs)
    changes = find_structural(case.output, pairs)
    random.Random(name).shuffle(changes)
    wrong = []
    for change in changes[:num]:
        read = read_once(replace(case, output=change.output))
        valid = [call for call in read.calls if call.outcome == "valid"]
        got = Counter(canonical(call.name, call.arguments) for call in valid)
        if got - wanted and not _is_call(change):
            wrong.append(change)
    return wrong


def _is_call(change: Change) -> bool:
    """Whether a tag was added that opens a call of an offered tool."""
    adds = change.kind in ("insert", "double")
    return adds and any(f"={tool}>" in change.piece for tool in TOOLS)


@pytest.mark.parametrize("name", ANSWERS)
def test_no_structural_damage_is_valid_with_other_arguments(name: str) -> None:
    assert find_wrong(name, 40) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_no_structural_damage_of_many_is_valid_with_other_arguments(name: str) -> None:
    assert find_wrong(name, 400) == []
