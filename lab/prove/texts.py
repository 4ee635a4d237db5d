"""Comparison of two texts of a request: equal, different at a near tie, or a fault.

Rounding may decide between two tokens that are almost equally good
(``engine/speculation/rounding.py``). The reference is written with log probabilities, so the margin
between both tokens is known.

With a seed, the chosen token has the largest log probability / temperature + noise, where the noise
depends only on seed, position and token. The margin is then that of the two sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from eaglegate.engine.speculation.rounding import find_tie
from eaglegate.engine.types import PositionLogprobs
from eaglegate.lab.prove.lane import ProofAnswer

Noise = Callable[[int, int, Sequence[int]], Sequence[float]]
"""Sampling noise of tokens, given seed and position."""


class Kind(StrEnum):
    """Cause of a difference between two texts."""

    TIE = "near tie"
    FAULT = "fault"
    UNKNOWN = "unexplained"


@dataclass(frozen=True, slots=True)
class Difference:
    """First token at which a text differs from its reference."""

    request: str
    token: int
    kind: Kind
    margin: float | None
    """Nats by which the reference prefers its own token; None if unknown."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.margin is None:
            return f"{self.request}, token {self.token}: {self.kind}, margin unknown"
        return f"{self.request}, token {self.token}: {self.kind}, margin {self.margin:.3f} nats"


@dataclass(frozen=True, slots=True)
class TextComparison:
    """Comparison of answers with their references."""

    answers: int
    tokens: int
    """Number of tokens compared, up to each first difference."""
    differences: tuple[Difference, ...]

    def count(self, kind: Kind) -> int:
        return sum(one.kind is kind for one in self.differences)

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            **{kind.value: self.count(kind) for kind in Kind},
            "differences": [one.to_json() for one in self.differences[:20]],
        }


def compare_texts(
    pairs: Sequence[tuple[ProofAnswer, ProofAnswer]], dtype: str, noise: Noise | None = None
) -> TextComparison:
    """Compare texts; each of ``pairs`` is a reference with log probabilities and an answer."""
    found = [compare(reference, answer, dtype, noise) for reference, answer in pairs]
    tokens = [
        len(answer.token_ids) if one is None else one.token
        for one, (_, answer) in zip(found, pairs, strict=True)
    ]
    return TextComparison(len(pairs), sum(tokens), tuple(one for one in found if one is not None))


def compare(
    reference: ProofAnswer, answer: ProofAnswer, dtype: str, noise: Noise | None
) -> Difference | None:
    """Return the first difference, or None."""
    both = zip_longest(reference.token_ids, answer.token_ids)
    at = next((at for at, (want, got) in enumerate(both) if want != got), None)
    if at is None:
        return None
    name = answer.request.id
    if at >= min(len(reference.token_ids), len(answer.token_ids)):
        return Difference(name, at, Kind.FAULT, None)  # one of them ends early
    margin = find_margin(reference, at, answer.token_ids[at], noise)
    if margin is None:
        return Difference(name, at, Kind.FAULT, None)
    tie = find_tie(dtype) / (reference.request.sampling.temperature or 1.0)
    if margin < -tie:  # the reference itself did not take the best token: another sampler made it
        return Difference(name, at, Kind.UNKNOWN, margin)
    return Difference(name, at, Kind.TIE if margin <= tie else Kind.FAULT, margin)


def find_margin(reference: ProofAnswer, at: int, token: int, noise: Noise | None) -> float | None:
    """Return how much the reference prefers its own token; None if the other is unlikely."""
    if at >= len(reference.logprobs):
        return None
    known = list_logprobs(reference.logprobs[at])
    own = reference.token_ids[at]
    if token not in known:
        return None
    sampling = reference.request.sampling
    if not sampling.temperature:
        return known[own] - known[token]
    if noise is None or sampling.seed is None:
        return None
    position = len(reference.request.prompt) + at - 1
    ours, theirs = noise(sampling.seed, position, (own, token))
    return (known[own] - known[token]) / sampling.temperature + ours - theirs


def list_logprobs(entry: PositionLogprobs) -> dict[int, float]:
    return {one.token_id: one.logprob for one in (*entry.top, entry.chosen)}
