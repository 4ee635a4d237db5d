"""Test of sampled tokens against the distribution that they must come from.

Every sampled token comes with the log probabilities of the likeliest tokens in its place, from the
target's own logits. With a temperature T and top-k, the sampling distribution is known exactly: it
is proportional to exp(log probability / T) among the k likeliest. The log probability of the drawn
token then has a known mean and variance. The sum of (drawn - mean) over all tokens, divided by its
standard deviation, is a martingale's sum and thus about normal (z). Too low a temperature gives a
positive z, too high a negative one. Counts of the token's rank are judged likewise.

The power is the z of a sampler that ignores the temperature. If it is small, the texts are too
certain to tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eaglegate.engine.types import PositionLogprobs
from eaglegate.lab.prove.lane import ProofAnswer
from eaglegate.lab.prove.texts import list_logprobs

RANKS = ((1, 1), (2, 2), (3, 4), (5, 1 << 30))
"""Groups of ranks that are counted together, by first and last rank."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be drawn in one place, likeliest first."""

    logprobs: tuple[float, ...]
    choice: int | None
    """Index of the drawn token; None if it is not among them."""

    def weigh(self, temperature: float) -> list[float]:
        """Return the tokens' probabilities at a temperature."""
        top = self.logprobs[0]
        weights = [math.exp((logprob - top) / temperature) for logprob in self.logprobs]
        total = sum(weights)
        return [weight / total for weight in weights]


@dataclass(slots=True)
class Deviation:
    """Sum of observations minus their means."""

    excess: float = 0.0
    variance: float = 0.0

    def add(self, value: float, mean: float, variance: float) -> None:
        self.excess += value - mean
        self.variance += variance

    @property
    def z(self) -> float:
        return self.excess / math.sqrt(self.variance) if self.variance > 0 else 0.0


@dataclass(slots=True)
class SampleScore:
    """Distance of a set of sampled tokens from its distribution."""

    tokens: int
    outside_top_k: int
    """Number of tokens that top-k should have excluded."""
    score: Deviation
    ranks: tuple[Deviation, ...]
    counts: tuple[int, ...]
    """Number of drawn tokens by group of ``RANKS``."""
    expected_counts: tuple[float, ...]
    power: float

    @property
    def max_deviation(self) -> float:
        return max(abs(deviation.z) for deviation in (self.score, *self.ranks))

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "outside_top_k": self.outside_top_k,
            "z": round(self.score.z, 2),
            "z_without_temperature": round(self.power, 1),
            "drawn_by_rank": list(self.counts),
            "expected_by_rank": [round(count, 1) for count in self.expected_counts],
            "z_by_rank": [round(count.z, 2) for count in self.ranks],
        }


def score_samples(answers: Iterable[ProofAnswer], temperature: float, top_k: int) -> SampleScore:
    score, power = Deviation(), Deviation()
    ranks = tuple(Deviation() for _ in RANKS)
    counts, expected_counts = [0] * len(RANKS), [0.0] * len(RANKS)
    tokens = outsiders = 0
    for candidates in (read(entry, top_k) for answer in answers for entry in answer.logprobs):
        tokens += 1
        if candidates.choice is None:
            outsiders += 1
            continue
        shares = candidates.weigh(temperature)
        mean, variance = describe(candidates.logprobs, shares)
        score.add(candidates.logprobs[candidates.choice], mean, variance)
        power.add(describe(candidates.logprobs, candidates.weigh(1.0))[0], mean, variance)
        for group, (low, high) in enumerate(RANKS):
            share = sum(shares[low - 1 : high])
            hit = low <= candidates.choice + 1 <= high
            counts[group] += hit
            expected_counts[group] += share
            ranks[group].add(hit, share, share * (1 - share))
    return SampleScore(
        tokens, outsiders, score, ranks, tuple(counts), tuple(expected_counts), power.z
    )


def read(entry: PositionLogprobs, top_k: int) -> Candidates:
    """Return the candidates of one place. Ties at the last rank are kept, as in vLLM."""
    logprobs = list_logprobs(entry)
    ranking = sorted(logprobs.items(), key=lambda item: -item[1])
    threshold = ranking[min(top_k, len(ranking)) - 1][1]
    finalists = [item for item in ranking if item[1] >= threshold]
    ids = [token for token, _ in finalists]
    token_id = entry.chosen.token_id
    return Candidates(
        tuple(logprob for _, logprob in finalists), ids.index(token_id) if token_id in ids else None
    )


def describe(values: Sequence[float], shares: Sequence[float]) -> tuple[float, float]:
    """Return mean and variance."""
    mean = sum(value * share for value, share in zip(values, shares, strict=True))
    square = sum(value * value * share for value, share in zip(values, shares, strict=True))
    return mean, max(0.0, square - mean * mean)
