"""An engine under test: its answers, and its speed in rounds. ``engine_lane.py`` has the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    EngineRequest,
    PositionLogprobs,
    Sampling,
)

if TYPE_CHECKING:
    from eaglegate.lab.prove.engine_lane import Lane

PromptTokens = tuple[int, ...]
NUMBERS = count()
"""Counter for request ids, each of which is used once."""


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """Answer to one request. Times are in seconds of one clock."""

    request: EngineRequest
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    account: Account
    first_at: float
    ended_at: float

    @property
    def totals(self) -> Totals:
        return self.account.totals


@dataclass(slots=True)
class Progress:
    """Number of tokens that running requests have brought, to act in the middle of them."""

    threshold: int
    """Number of tokens at which ``event`` is set."""
    event: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: int = 0

    def add(self, tokens: int) -> None:
        self.tokens += tokens
        if self.tokens >= self.threshold:
            self.event.set()


async def run(
    lane: Lane, request: EngineRequest, progress: Progress | None = None, leave_after: int = 0
) -> ProofAnswer:
    """Read a request to its end, or leave after ``leave_after`` tokens."""
    account = Account()
    tokens: list[int] = []
    logprobs: list[PositionLogprobs] = []
    first_at = 0.0
    async with aclosing(read_steps(lane.generate, request)) as steps:
        async for step in steps:
            first_at = first_at or time.perf_counter()
            account.add(step)
            tokens += step.token_ids
            logprobs += step.logprobs
            if progress is not None:
                progress.add(len(step.token_ids))
            if leave_after and len(tokens) >= leave_after:
                break
    return ProofAnswer(
        request, tuple(tokens), tuple(logprobs), account, first_at, time.perf_counter()
    )


async def run_all(
    lane: Lane, requests: Iterable[EngineRequest], progress: Progress | None = None
) -> list[ProofAnswer]:
    """Run all requests at once, in one batch if the engine has room."""
    return list(await asyncio.gather(*(run(lane, request, progress) for request in requests)))


def make_requests(
    name: str, prompts: Sequence[PromptTokens], make: Callable[[int], Sampling]
) -> list[EngineRequest]:
    """Make one request per prompt; ``make`` returns the sampling by number."""
    return [
        EngineRequest(f"{name}-{number}", prompt, make(number))
        for number, prompt in enumerate(prompts)
    ]


def fix_depth(depth: int | None, requests: Iterable[EngineRequest]) -> list[EngineRequest]:
    return [replace(request, id=f"{request.id}@{depth}", depth=depth) for request in requests]


def add_totals(answers: Iterable[ProofAnswer]) -> Totals:
    return sum((answer.totals for answer in answers), Totals())


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


async def measure_speed(lane: Lane, load: SpeedLoad, prompts: Sequence[PromptTokens]) -> Speed:
    """Measure greedy answers of exactly ``load.tokens`` tokens each."""
    sampling = Sampling(max_tokens=load.tokens, temperature=0.0, ignore_eos=True)

    def make_request(prompt: PromptTokens) -> EngineRequest:
        return EngineRequest(f"speed-{next(NUMBERS)}", prompt, sampling)

    async def stream(number: int) -> list[ProofAnswer]:
        turns = (prompts[(number + turn) % len(prompts)] for turn in range(load.turns))
        return [await run(lane, make_request(prompt)) for prompt in turns]

    start = time.perf_counter()
    streams = await asyncio.gather(*(stream(number) for number in range(load.streams)))
    took_s = time.perf_counter() - start
    answers = [answer for group in streams for answer in group]
    later_tokens = sum(len(answer.token_ids) - 1 for answer in answers)
    decoding_s = sum(answer.ended_at - answer.first_at for answer in answers)
    return Speed(
        later_tokens / decoding_s, sum(len(answer.token_ids) for answer in answers) / took_s
    )


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
