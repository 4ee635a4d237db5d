"""An engine whose next token follows from the last one, and which dies when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from eaglegate.engine.base import (
    SupportsDepth,
    SupportsKill,
    SupportsKilled,
    SupportsPostMortem,
)
from eaglegate.engine.errors import EngineDead, EngineStartError
from eaglegate.engine.scripted import DEFAULT_INFO, ScriptedEngine, steps
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.supervision.policy import LossCause, RecoveryOutcome, SupervisionTimeouts
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from eaglegate.engine.types import (
    EngineInfo,
    EngineRequest,
    Health,
    PostMortem,
    Sampling,
    SpeculationInfo,
    Step,
)
from eaglegate.text.events import FinishReason

FAST = SupervisionTimeouts(
    poll_s=0.005, start_s=5, hang_s=0.05, stall_s=60, wait_s=5, backoff_s=0, stable_s=60
)


def following(request: EngineRequest) -> list[int]:
    """A greedy chain from the last prompt token; seeds and constraints count from the start."""
    sampling = request.sampling
    start = len(request.prompt) if request.constraint or sampling.seed else 0
    token, out = request.prompt[-1] + start + (sampling.seed or 0), []
    for _ in range(sampling.max_tokens):
        token = (token * 5 + 7) % 2003
        out.append(token)
    return out


@dataclass
class Cradle:
    """Makes engines; tests say how each life ends."""

    doom: Callable[[int, EngineRequest, int], bool] = lambda life, request, step: False
    """Whether life ``life`` ends when ``request`` is about to make step ``step`` (from 0)."""
    cuts: tuple[int, ...] = (1, 3, 2, 4, 1, 3, 3, 2)
    lives: list[Mortal] = field(default_factory=list)
    killed: bool = False
    """Whether lives end by a signal from outside."""
    start_fails: set[int] = field(default_factory=set)
    start_hangs: set[int] = field(default_factory=set)
    freeze_at: Callable[[int], bool] = lambda life: False
    """Whether life ``life`` stands still when the next request comes."""
    depth: int = 0
    per_request: bool = True

    def make(self) -> Mortal:
        self.lives.append(Mortal(self, len(self.lives)))
        return self.lives[-1]


class Mortal(ScriptedEngine, SupportsDepth, SupportsKill, SupportsKilled, SupportsPostMortem):
    def __init__(self, cradle: Cradle, number: int) -> None:
        super().__init__(script=self.play)
        self.cradle, self.number = cradle, number
        self.frozen = asyncio.Event()
        self.died = asyncio.Event()
        self.hangs = asyncio.Event()
        """Set to end a start that hangs."""
        self.bounds: list[int] = []
        self.explanation = PostMortem()

    async def _play(self, request: EngineRequest):
        if self.cradle.freeze_at(self.number):
            self.frozen.set()
        async with aclosing(super()._play(request)) as made:
            async for step in made:
                if self.frozen.is_set():
                    await self.died.wait()
                    raise EngineDead(self.dead)
                yield step

    def play(self, request: EngineRequest):
        made = steps(following(request), self.cradle.cuts, FinishReason.LENGTH)
        for at, step in enumerate(made):
            if self.cradle.doom(self.number, request, at):
                self.kill()
            if self.dead:
                yield EngineDead(self.dead)
            yield step

    def kill(self) -> int:
        self.dead = "killed"
        self.died.set()
        return 1

    @property
    def killed(self) -> bool:
        return self.cradle.killed

    async def start(self) -> EngineInfo:
        if self.number in self.cradle.start_fails:
            raise EngineStartError("no memory left")
        if self.number in self.cradle.start_hangs:
            await self.hangs.wait()
        speculation = SpeculationInfo(
            "eagle3", self.cradle.depth, per_request=self.cradle.per_request
        )
        return replace(DEFAULT_INFO, speculation=speculation)

    async def set_depth(self, depth: int) -> int:
        if self.frozen.is_set():
            await self.died.wait()
        self.bounds.append(depth)
        return min(depth, self.cradle.depth)

    async def post_mortem(self) -> PostMortem:
        return self.explanation

    async def health(self) -> Health:
        if self.frozen.is_set():
            await self.died.wait()
        return await super().health()

    async def aclose(self) -> None:
        self.kill()
        self.closed.set()


@dataclass
class Notes:
    """A watcher that remembers."""

    lost: list[LossCause] = field(default_factory=list)
    back: int = 0
    outcomes: Counter[RecoveryOutcome] = field(default_factory=Counter)
    draft_deaths: list[tuple[str, int]] = field(default_factory=list)
    held: list[tuple[int, bool]] = field(default_factory=list)

    def record_loss(self, cause: LossCause) -> None:
        self.lost.append(cause)

    def record_recovery(self, info: EngineInfo, seconds: float) -> None:
        self.back += 1

    def record_interruption(self, outcome: RecoveryOutcome, request: str) -> None:
        self.outcomes[outcome] += 1

    def record_draft_death(self, method: str, depth: int) -> None:
        self.draft_deaths.append((method, depth))

    def record_draft_hold(self, hold: DraftHold, *, is_held: bool) -> None:
        self.held.append((hold.depth, is_held))


def supervised(
    cradle: Cradle, timeouts: SupervisionTimeouts = FAST
) -> tuple[SupervisedEngine, Notes]:
    notes = Notes()
    return SupervisedEngine(cradle.make, timeouts, notes), notes


def ask(name: str = "r", tokens: int = 12, **fields) -> EngineRequest:
    sampling = Sampling(max_tokens=tokens, temperature=0.0, **fields.pop("sampling", {}))
    return EngineRequest(name, prompt=fields.pop("prompt", (1, 2, 3)), sampling=sampling, **fields)


async def collect(engine: SupervisedEngine, request: EngineRequest) -> list[Step]:
    return [step async for step in read_steps(engine.generate, request)]


def tokens_of(got: list[Step]) -> list[int]:
    return [token for step in got for token in step.token_ids]


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until ``condition`` holds; 5 s at most."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
