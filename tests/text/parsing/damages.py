"""Structural damages of an answer: one piece dropped, doubled, inserted or misspelt.

A structural damage is one outside of the values, where nobody can know of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

PIECE = re.compile(r"⟪[^⟫]*⟫|</?[^<>\s]*>?|[A-Za-z_]+|\d+|\s+|.", re.DOTALL)
STRAY = ('"', "'", "`", "{", "}", "[", "]", "(", ",", "\n", "<", "</", "``", "```")


@dataclass(frozen=True)
class Change:
    """One piece of an answer, dropped, doubled, inserted or misspelt at ``place``."""

    kind: str
    piece: str
    place: int
    output: str

    def places(self) -> Iterator[int]:
        """The places where the same change gives the same result."""
        yield self.place
        if self.kind in ("insert", "double"):
            at = self.place
            while self.output.startswith(self.piece, at + len(self.piece)):
                at += len(self.piece)
                yield at


def find_structural(output: str, calls: Sequence[tuple[str, str]]) -> list[Change]:
    """Every damage of an answer outside of its values. ``calls`` are names and JSON."""
    values = _find_values(output, calls)
    return [
        change
        for change in _find_changes(output)
        if not any(start <= at <= end for at in change.places() for start, end in values)
    ]


def _find_changes(output: str) -> Iterator[Change]:
    pieces = PIECE.findall(output)
    strays = [*dict.fromkeys([*(piece for piece in pieces if not piece.isalnum()), *STRAY])]
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


def _find_values(output: str, calls: Sequence[tuple[str, str]]) -> list[tuple[int, int]]:
    """Spans of the values of ``calls`` in an answer, with the white space around them."""
    found, at = list[tuple[int, int]](), 0
    for empty in _EMPTY.finditer(output):
        middle = empty.start() + len(empty[0]) // 2
        found += [(middle, middle), (empty.end(), empty.end())]
    for name, arguments in calls:
        at = max(at, output.find(name, at))
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
    written = json.dumps(value, ensure_ascii=False)
    yield from (written[1:-1] if isinstance(value, str) else written, str(value))
    if isinstance(value, str):
        yield value.replace("\\", "\\\\").replace("\n", "\\n").replace("'", "\\'")


def _find(written: str, output: str, at: int) -> tuple[int, int] | None:
    """The first place where no letters surround it, or else the first."""
    whole = re.compile(rf"(?<![\w-]){re.escape(written)}(?![\w-])").search(output, at)
    place = whole.start() if whole else output.find(written, at)
    return (place, place + len(written)) if place >= 0 else None


def _widen(output: str, start: int, end: int) -> tuple[int, int]:
    while start and output[start - 1].isspace():
        start -= 1
    while end < len(output) and output[end].isspace():
        end += 1
    return start, end


def canonical(name: str, arguments: str) -> tuple[str, str]:
    try:
        return name, json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return name, arguments
