"""An engine under test: the operations that checks need, and the answers it gives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    EngineInfo,
    EngineRequest,
    Execution,
    PositionLogprobs,
    Sampling,
    StepSink,
)

PromptTokens = tuple[int, ...]


class Lane(Protocol):
    """One engine, with or without a draft. It survives the loss of its process."""

    @property
    def info(self) -> EngineInfo: ...

    async def generate(self, request: EngineRequest, sink: StepSink) -> None: ...

    async def describe_execution(self) -> Execution | None: ...

    def count_drafts(self) -> Totals | None:
        """Return the engine's own counters of drafts; None without any."""
        ...

    @property
    def unclaimed(self) -> Totals:
        """Steps made for requests whose clients had left."""
        ...

    async def freeze_planning(self, depth: int | None) -> bool:
        """Hold the planner at a depth, or release it; return False without a planner."""
        ...

    @property
    def draft_folder(self) -> Path | None:
        """Folder of a draft that can be exchanged; None for other methods."""
        ...

    async def exchange_draft(self, folder: Path) -> float:
        """Serve another draft on trial. Return the seconds without a step."""
        ...

    async def restore_draft(self) -> float:
        """Serve the draft from before the exchange."""
        ...

    def kill(self) -> int:
        """End the engine's processes with SIGKILL. Return their number."""
        ...


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
