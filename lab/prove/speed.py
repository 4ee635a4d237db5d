"""Speed per user and in total, in rounds that visit every setting in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Any

from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.lab.prove.lane import Lane, PromptTokens, ProofAnswer, run

NUMBERS = count()
"""Counter for request ids, each of which is used once."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed in one round, in tokens per second."""

    user: float
    """Tokens per second of one stream after its first token, pooled."""
    total: float
    """Tokens per second of all streams together, including prompts."""


@dataclass(frozen=True, slots=True)
class SpeedLoad:
    """Load of ``streams`` at a time, each with ``turns`` prompts one after another."""

    streams: int
    turns: int
    tokens: int


async def measure_speed(
    lane: Lane, load: SpeedLoad, prompts: Sequence[PromptTokens], depth: int | None = None
) -> Speed:
    """Measure greedy answers of exactly ``load.tokens`` tokens each."""

    async def stream(number: int) -> list[ProofAnswer]:
        turns = (prompts[(number + turn) % len(prompts)] for turn in range(load.turns))
        return [await run(lane, _make_request(prompt, load.tokens, depth)) for prompt in turns]

    start = time.perf_counter()
    streams = await asyncio.gather(*(stream(number) for number in range(load.streams)))
    took_s = time.perf_counter() - start
    answers = [answer for group in streams for answer in group]
    later_tokens = sum(len(answer.token_ids) - 1 for answer in answers)
    decoding_s = sum(answer.ended_at - answer.first_at for answer in answers)
    return Speed(
        later_tokens / decoding_s, sum(len(answer.token_ids) for answer in answers) / took_s
    )


def _make_request(prompt: PromptTokens, tokens: int, depth: int | None) -> EngineRequest:
    sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(f"speed-{next(NUMBERS)}", prompt, sampling, depth=depth)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratios of speeds, round by round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.rounds)

    def to_json(self) -> dict[str, Any]:
        return {
            "median": round(self.median, 3),
            "lowest": round(min(self.rounds), 3),
            "highest": round(max(self.rounds), 3),
        }

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.rounds):.2f} to {max(self.rounds):.2f})"


def divide(speeds: Sequence[Speed], baselines: Sequence[Speed]) -> dict[str, Ratio]:
    """Return the ratios per user and in total of paired rounds."""
    pairs = list(zip(speeds, baselines, strict=True))
    return {
        "per user": Ratio(tuple(a.user / b.user for a, b in pairs)),
        "total": Ratio(tuple(a.total / b.total for a, b in pairs)),
    }
