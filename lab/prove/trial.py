"""Parts that all checks of a run share: engines, prompts, and texts to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.lab.prove.lane import (
    PromptTokens,
    ProofAnswer,
    Speed,
    SpeedLoad,
    make_requests,
    measure_speed,
    run_all,
)
from eaglegate.lab.prove.texts import Noise

if TYPE_CHECKING:
    from eaglegate.lab.prove.engine_lane import Lane

TOP = 16
"""Number of alternatives requested for each token. vLLM's default limit is 20."""
SEEDED_TEMPERATURE = 1.5
OPENINGS = (
    "The", "I look for", "Once upon a time", "A list of", "It is", "My", "When we", "There are",
)  # fmt: skip
"""Texts with many continuations. After a question, a model may be too sure to show anything."""


class ProofOutcome(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNSURE = "could not tell"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Outcome of a check, with one sentence of evidence and its numbers."""

    outcome: ProofOutcome
    evidence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a run."""

    prompts: int
    tokens: int
    """Largest number of tokens in an answer."""
    samples: int
    """Number of sampled answers at each depth."""
    sampled_tokens: int
    mixed_requests: int
    """Number of requests in the accounts' mixed load."""
    loads: tuple[SpeedLoad, ...] = ()
    """Loads for the speed check; empty if speed is not measured."""
    rounds: int = 0


FULL = Size(
    prompts=16,
    tokens=64,
    samples=64,
    sampled_tokens=12,
    mixed_requests=64,
    loads=(SpeedLoad(1, 3, 48), SpeedLoad(4, 2, 48), SpeedLoad(16, 1, 48)),
    rounds=5,
)
QUICK = Size(prompts=4, tokens=24, samples=64, sampled_tokens=6, mixed_requests=12)


@dataclass(frozen=True, slots=True)
class Reference:
    """Answers and speeds of the engine without a draft."""

    greedy_answers: tuple[ProofAnswer, ...]
    seeded_answers: tuple[ProofAnswer, ...]
    speeds: Mapping[int, Sequence[Speed]]
    """Rounds by number of streams; empty if both engines run side by side."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: the engine with its draft, and the reference."""

    lane: Lane
    size: Size
    prompts: Sequence[PromptTokens]
    openings: Sequence[PromptTokens]
    """Prompts with many plausible continuations."""
    reference: Reference
    folder: Path
    """Temporary folder of the run."""
    noise: Noise | None = None
    baseline: Lane | None = None
    """Engine without a draft, if both run side by side."""
    is_planned: bool = True
    """True if the arguments leave the depth to the planner."""
    raw_logprobs: bool = True
    """True if log probabilities are the target's, before any sampling parameter."""
    dtype: str = "auto"

    @property
    def depth(self) -> int:
        """Depth K of the draft."""
        return self.lane.info.speculation.depth

    def make_greedy(self, name: str) -> list[EngineRequest]:
        """Make a greedy request of each prompt."""
        return make_requests(name, self.prompts, lambda _: sample_greedy(self.size, None))


async def record_reference(
    lane: Lane, prompts: Sequence[PromptTokens], size: Size, measure: bool
) -> Reference:
    """Record the reference; ``measure`` includes its speed, for engines not run side by side."""
    greedy_answers = await run_all(
        lane, make_requests("greedy", prompts, lambda _: sample_greedy(size))
    )
    seeded_answers = await run_all(
        lane, make_requests("seeded", prompts, lambda n: sample_seeded(size, n))
    )
    speeds = {}
    for load in size.loads if measure else ():
        await measure_speed(lane, load, prompts)
        speeds[load.streams] = [
            await measure_speed(lane, load, prompts) for _ in range(size.rounds)
        ]
    return Reference(tuple(greedy_answers), tuple(seeded_answers), speeds)


def sample_greedy(size: Size, logprobs: int | None = TOP) -> Sampling:
    return Sampling(max_tokens=size.tokens, temperature=0.0, logprobs=logprobs)


def sample_seeded(size: Size, seed: int, logprobs: int | None = TOP) -> Sampling:
    return Sampling(
        max_tokens=size.tokens, temperature=SEEDED_TEMPERATURE, seed=seed, logprobs=logprobs
    )
