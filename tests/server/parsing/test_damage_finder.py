"""Drops, doubles and inserts pieces of answers in every format: they read alike at every cutting.

The answers are those of ``shapes.yaml``.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.types import FinishReason
from tests.server.parsing.golden_reading import joined
from tests.server.parsing.test_damaged import Damage, check, read_events
from tests.server.parsing.test_reported import SHAPES, damage_of

TOOLS = SHAPES["tools"]
ANSWERS = {case["name"]: damage_of(case, TOOLS) for case in SHAPES["ordinary"]}
ENCODED = {
    name: case
    for name, case in ANSWERS.items()
    if any(len(arguments) > 2 and arguments in case.output for _, arguments, _ in case.calls)
}
"""Those whose arguments stand in the answer as the client gets them."""
_PIECE = re.compile(r"⟪[^⟫]*⟫|</?[^<>\s]*>?|[A-Za-z_]+|\d+|\s+|.", re.DOTALL)
_STRAY = ('"', "'", "`", "{", "}", "[", "]", "(", ",", "\n", "<", "</", "``", "```")


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
    pieces = _PIECE.findall(output)
    strays = [*dict.fromkeys(piece for piece in pieces if not piece.isalnum()), *_STRAY]
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
