"""The ways in which threads tell that answers were damaged, each as a change of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from eaglegate.engine.types import Sampling


def replace_token(tokens: Sequence[int], place: int, vocabulary: int) -> list[int]:
    changed = [*tokens]
    changed[place] = (changed[place] + 97) % vocabulary
    return changed


def drop_token(tokens: Sequence[int], place: int) -> list[int]:
    return [*tokens[:place], *tokens[place + 1 :]]


def double_token(tokens: Sequence[int], place: int) -> list[int]:
    return [*tokens[: place + 1], *tokens[place:-1]]


def mix_answers(tokens: Sequence[int], other: Sequence[int], place: int) -> list[int]:
    """Three tokens of another request."""
    return [*tokens[:place], *other[place : place + 3], *tokens[place + 3 :]]


def swap_counts(
    tokens: Sequence[int], sizes: Sequence[int], others: Sequence[int], drafts: Sequence[int]
) -> list[int]:
    """Each step delivers as many tokens as another row accepted: too few, or drafts as well."""
    changed: list[int] = []
    begin = 0
    for number, size in enumerate(sizes):
        count = others[number % len(others)]
        step = tokens[begin : begin + size]
        changed += step[:count]
        changed += drafts[begin + size : begin + count]
        begin += size
    return changed[: len(tokens)]


def ignore_temperature(sampling: Sampling) -> Sampling:
    """A greedy request is drawn, and a drawn one is at the temperature of its neighbour."""
    cold = 0.2 if sampling.temperature == 1.0 else 1.0
    return structs.replace(sampling, temperature=cold, top_k=sampling.top_k)
