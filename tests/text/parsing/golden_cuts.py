"""The ways to cut an output into engine steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Cutting:
    name: str
    chunks: Chunks


def every(ids: Sequence[int], size: int, first: int | None = None) -> Chunks:
    """Steps of ``size`` tokens, after one of ``first``."""
    start = min(size if first is None else first, len(ids))
    rest = [tuple(ids[at : at + size]) for at in range(start, len(ids), size)]
    return tuple(chunk for chunk in (tuple(ids[:start]), *rest) if chunk)


def at(ids: Sequence[int], places: Sequence[int]) -> Chunks:
    edges = [0, *sorted(places), len(ids)]
    chunks = [tuple(ids[a:b]) for a, b in pairwise(edges)]
    return tuple(chunk for chunk in chunks if chunk)


def randomly(ids: Sequence[int], seed: int) -> Chunks:
    """Bursts of 1..8 tokens, as acceptance comes and goes."""
    dice, places, place = random.Random(seed), [], 0
    while (place := place + dice.randint(1, 8)) < len(ids):
        places.append(place)
    return at(ids, places)


def cuttings(ids: Sequence[int], own: Sequence[int], eos: int | None) -> Iterator[Cutting]:
    """The usual ones. ``own`` are places the case names; ``eos`` ends the output when given."""
    end = () if eos is None else (eos,)
    whole = (*ids, *end)
    for size in (*range(1, 9), 11, 16):
        yield Cutting(f"{size} a step", every(whole, size))
    yield Cutting("the first alone, then 4 a step", every(whole, 4, first=1))
    yield Cutting("the first alone, then 7 a step", every(whole, 7, first=1))
    yield Cutting("all in one", every(whole, len(whole) or 1))
    if end:
        yield Cutting("all in one, the end apart", (*every(ids, len(ids) or 1), end))
    yield Cutting("empty steps between", tuple(x for c in every(whole, 2) for x in (c, ())))
    if own:
        yield Cutting("the case's own", at(whole, own))
    for seed in range(2):
        yield Cutting(f"random, seed {seed}", randomly(whole, seed))


def few(ids: Sequence[int], own: Sequence[int], eos: int | None) -> Iterator[Cutting]:
    """One token a step, random steps, all in one, and the case's own places."""
    whole = (*ids, *(() if eos is None else (eos,)))
    yield Cutting("1 a step", every(whole, 1))
    yield Cutting("random, seed 1", randomly(whole, 1))
    yield Cutting("all in one", every(whole, len(whole) or 1))
    if own:
        yield Cutting("the case's own", at(whole, own))


def in_steps(ids: Sequence[int], eos: int | None) -> Iterator[Cutting]:
    """1 to 8 tokens a step, all in one, and at random."""
    whole = (*ids, *(() if eos is None else (eos,)))
    for size in range(1, 9):
        yield Cutting(f"{size} a step", every(whole, size))
    yield Cutting("all in one", every(whole, len(whole) or 1))
    yield Cutting("random, seed 1", randomly(whole, 1))


def every_split(ids: Sequence[int], eos: int | None) -> Iterator[Cutting]:
    """Cuttings into two parts, one at every place."""
    whole = (*ids, *(() if eos is None else (eos,)))
    for place in range(1, len(whole)):
        yield Cutting(f"in two after {place}", at(whole, [place]))
