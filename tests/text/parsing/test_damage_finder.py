"""Drops, doubles, inserts and misspells pieces of answers in every format.

The damaged answers read alike at every cutting. None holds a valid call that the answer does not
hold, unless the damage is inside a value, where nobody can know of it, or adds a whole call. The
answers are those of ``shapes.yaml``.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from eaglegate.text.events import FinishReason
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


@dataclass(frozen=True)
class Change:
    """One piece of an answer, dropped, doubled, inserted or misspelt at ``place``."""

    kind: str
    piece: str
    place: int
    output: str

    def places(self) -> Iterator[int]:
        """Where the same change can be made with the same result."""
        yield self.place
        if self.kind in ("insert", "double"):
            at = self.place
            while self.output.startswith(self.piece, at + len(self.piece)):
                at += len(self.piece)
                yield at


def _changes(output: str) -> Iterator[Change]:
    pieces = _PIECE.findall(output)
    strays = [*dict.fromkeys([*(piece for piece in pieces if not piece.isalnum()), *_STRAY])]
    at = 0
    for piece in pieces:
        before, after = output[:at], output[at + len(piece) :]
        yield Change("drop", piece, at, before + after)
        yield Change("double", piece, at, before + piece + piece + after)
        for stray in strays:
            yield Change("insert", stray, at, before + stray + piece + after)
        if any(map(str.isalpha, piece)) and "⟪" not in piece:
            place = next(i for i in reversed(range(len(piece))) if piece[i].isalpha())
            other = "q" if piece[place] != "q" else "z"
            start, end = piece[:place], piece[place + 1 :]
            yield Change("letter", piece, at + place, f"{before}{start}{other}{end}{after}")
            yield Change("letter", piece, at + place, f"{before}{start}{end}{after}")
        at += len(piece)


_EMPTY = re.compile(r'(?<=[\s:])(""|\'\')|(?:⟪<escape>⟫){2}|(?:⟪<\|"\|>⟫){2}|<name>(?=⟪)')
"""An empty string in any format."""


def _values(case: Damage) -> list[tuple[int, int]]:
    """Where the values stand in an answer, with the white space around them."""
    output, found, at = case.output, list[tuple[int, int]](), 0
    for empty in _EMPTY.finditer(output):
        middle = empty.start() + len(empty[0]) // 2
        found += [(middle, middle), (empty.end(), empty.end())]
    for name, arguments, _ in case.calls:
        at = max(0, output.find(name))
        for value in filter(lambda leaf: leaf != "", _leaves(json.loads(arguments))):
            place = next(filter(None, (_find(form, output, at) for form in _spell(value))))
            found.append(place)
            at = place[1]
    return [_widen(output, *place) for place in found]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _spell(value: Any) -> Iterator[str]:
    """A value as any format writes it."""
    yield from [json.dumps(value, ensure_ascii=False).strip('"'), str(value)]
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace("\n", "\\n").replace("'", "\\'")
        yield from (json.dumps(value, ensure_ascii=False)[1:-1], quoted)


def _find(written: str, output: str, at: int) -> tuple[int, int] | None:
    place = output.find(written, at)
    return (place, place + len(written)) if place >= 0 else None


def _widen(output: str, start: int, end: int) -> tuple[int, int]:
    while start and output[start - 1].isspace():
        start -= 1
    while end < len(output) and output[end].isspace():
        end += 1
    return start, end


def _canonical(name: str, arguments: str) -> tuple[str, str]:
    try:
        return name, json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return name, arguments


def find_wrong(name: str, num: int) -> list[Change]:
    """Structural damages of an answer after which a call is valid that is not in it."""
    case, values = ANSWERS[name], _values(ANSWERS[name])
    wanted = Counter(_canonical(called, arguments) for called, arguments, _ in case.calls)
    changes = [
        change
        for change in _changes(case.output)
        if not any(start <= at <= end for at in change.places() for start, end in values)
    ]
    random.Random(name).shuffle(changes)
    wrong = []
    for change in changes[:num]:
        read = read_once(replace(case, output=change.output))
        valid = [call for call in read.calls if call.outcome == "valid"]
        got = Counter(_canonical(call.name, call.arguments) for call in valid)
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


KNOWN = {
    "openai-nested": ["⟪<|call|>⟫"],
    "kimi_k2-nested": ["⟪<|tool_call_begin|>⟫"],
    "deepseek_v4-nested": ["</⟪｜DSML｜⟫tool_calls>"],
    "dots-content-two": ["/"],
    "minimax_m3-nested": ["</items>", "</invoke>"],
}
"""Damages that stay valid, by answer; docs/parsers.md has the reasons."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_no_structural_damage_of_many_is_valid_with_other_arguments(name: str) -> None:
    assert [change.piece for change in find_wrong(name, 400)] == KNOWN.get(name, [])
