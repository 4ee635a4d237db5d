"""Comparison of two texts of a request: equal, different at a near tie, or a fault.

Rounding may decide between two tokens that are almost equally good
(``engine/speculation/accounts/rounding.py``). The reference is written with log probabilities, so
the margin between both tokens is known.

With a seed, the chosen token has the largest log probability / temperature + noise, where the noise
depends only on seed, position and token. The margin is then that of the two sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from eaglegate.engine.speculation.accounts.rounding import find_tie
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
        return sum(difference.kind is kind for difference in self.differences)

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            **{kind.value: self.count(kind) for kind in Kind},
            "differences": list(self.differences[:20]),
        }


def compare_texts(
    pairs: Sequence[tuple[ProofAnswer, ProofAnswer]], dtype: str, noise: Noise | None = None
) -> TextComparison:
    """Compare texts; each of ``pairs`` is a reference with log probabilities and an answer."""
    differences = [compare(reference, answer, dtype, noise) for reference, answer in pairs]
    tokens = [
        len(answer.token_ids) if difference is None else difference.token
        for difference, (_, answer) in zip(differences, pairs, strict=True)
    ]
    return TextComparison(
        len(pairs),
        sum(tokens),
        tuple(difference for difference in differences if difference is not None),
    )


def compare(
    reference: ProofAnswer, answer: ProofAnswer, dtype: str, noise: Noise | None
) -> Difference | None:
    """Return the first difference, or None."""
    pairs = zip_longest(reference.token_ids, answer.token_ids)
    index = next(
        (index for index, (expected_token, token) in enumerate(pairs) if expected_token != token),
        None,
    )
    if index is None:
        return None
    name = answer.request.id
    if index >= min(len(reference.token_ids), len(answer.token_ids)):
        return Difference(name, index, Kind.FAULT, None)  # one of them ends early
    margin = find_margin(reference, index, answer.token_ids[index], noise)
    if margin is None:
        return Difference(name, index, Kind.FAULT, None)
    tie = find_tie(dtype) / (reference.request.sampling.temperature or 1.0)
    if margin < -tie:  # the reference itself did not take the best token: another sampler made it
        return Difference(name, index, Kind.UNKNOWN, margin)
    return Difference(name, index, Kind.TIE if margin <= tie else Kind.FAULT, margin)


def find_margin(
    reference: ProofAnswer, index: int, token: int, noise: Noise | None
) -> float | None:
    """Return how much the reference prefers its own token; None if the other is unlikely."""
    if index >= len(reference.logprobs):
        return None
    logprobs = list_logprobs(reference.logprobs[index])
    own_token = reference.token_ids[index]
    if token not in logprobs:
        return None
    sampling = reference.request.sampling
    if not sampling.temperature:
        return logprobs[own_token] - logprobs[token]
    if noise is None or sampling.seed is None:
        return None
    position = len(reference.request.prompt) + index - 1
    own_noise, other_noise = noise(sampling.seed, position, (own_token, token))
    return (logprobs[own_token] - logprobs[token]) / sampling.temperature + own_noise - other_noise


def list_logprobs(entry: PositionLogprobs) -> dict[int, float]:
    return {token.token_id: token.logprob for token in (*entry.top, entry.chosen)}
