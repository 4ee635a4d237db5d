"""Workers of a toy model, with numbers as exact as their answers are sound or damaged."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

from eaglegate.engine.base import ReadsPrompts
from eaglegate.engine.errors import EngineError
from eaglegate.engine.fleet.discovery import StaticSource
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.scripted import DEFAULT_INFO, ScriptedEngine
from eaglegate.engine.speculation.accounts.scores import ScoringRules
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import (
    EngineInfo,
    EngineRequest,
    PositionLogprobs,
    Sampling,
    Step,
    TokenLogprob,
)
from eaglegate.features.audit.auditor import AuditedEngine, Auditor
from eaglegate.features.audit.holds import AuditHolds
from eaglegate.features.audit.records import EvidenceWriter, write_nothing
from eaglegate.features.audit.workers import WorkerPanel
from eaglegate.text.events import FinishReason
from tests.engine.fleet.town import RULES
from tests.engine.supervision.mortal import until
from tests.features.audit.notes import Notes

VOCABULARY = 256
TEXT = [number * number % VOCABULARY for number in range(200)]
INFO = replace(
    DEFAULT_INFO, vocab_size=VOCABULARY, max_model_len=4096, details={"version": "0.28.0"}
)
Damage = Callable[["ToyWorker", list[int], EngineRequest], list[int]]


@cache
def find_logprobs(last: int, weights: int = 0) -> Sequence[float]:
    """Log probabilities of all tokens after ``last``, in about the spread of a language model."""
    dice = Random(last + 1000 * weights)
    logits = [4 * dice.gauss(0, 1) for _ in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits]


def apply_rules(logprobs: Sequence[float], sampling: Sampling) -> dict[int, float]:
    """The distribution that a request asks for, as vLLM makes it."""
    if not (temperature := sampling.temperature):
        return {max(range(len(logprobs)), key=logprobs.__getitem__): 1.0}
    order = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])
    top = logprobs[order[0]]
    weights = {token: math.exp((logprobs[token] - top) / temperature) for token in order}
    weights = {token: weight for token, weight in weights.items() if weight >= sampling.min_p}
    weights = dict([*weights.items()][: sampling.top_k or None])
    total, mass, kept = sum(weights.values()), 0.0, {}
    for token, weight in weights.items():
        if mass >= sampling.top_p * total:
            break
        kept[token], mass = weight, mass + weight
    return {token: weight / mass for token, weight in kept.items()}


def look(logprobs: Sequence[float], chosen: int, count: int) -> PositionLogprobs:
    """What a worker tells of a place."""
    order = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])[:count]
    top = (TokenLogprob(token, logprobs[token], rank) for rank, token in enumerate(order, 1))
    return PositionLogprobs(TokenLogprob(chosen, logprobs[chosen]), tuple(top))


@dataclass
class ToyWorker:
    """One worker; ``damage`` changes its answers, ``noise`` its numbers at each reading."""

    seed: int = 0
    weights: int = 0
    damage: Damage | None = None
    noise: float = 0.0
    error: EngineError | None = None
    """What it says when it is asked for its numbers."""
    previous: list[int] = field(default_factory=lambda: [*range(30)])
    sizes: list[int] = field(default_factory=lambda: [2, 1, 3, 1, 4, 2, 1, 1, 3, 2])
    """Accepted tokens of the steps of another row."""
    info: EngineInfo = INFO

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)

    def generate(self, request: EngineRequest, sampling: Sampling | None = None) -> list[int]:
        sampling, tokens = sampling or request.sampling, list(request.prompt)
        for _ in range(sampling.max_tokens):
            kept = apply_rules(find_logprobs(tokens[-1], self.weights), sampling)
            tokens += self.dice.choices([*kept], [*kept.values()])
        return tokens[len(request.prompt) :]


class ToyEngine(ScriptedEngine, ReadsPrompts):
    def __init__(self, worker: ToyWorker) -> None:
        super().__init__(script=self.play)
        self.worker = worker

    async def start(self) -> EngineInfo:
        return self.worker.info

    def play(self, request: EngineRequest) -> Any:
        worker = self.worker
        tokens = worker.generate(request)
        if worker.damage is not None and request.id != "eaglegate-probe":
            tokens, worker.previous = worker.damage(worker, tokens, request), tokens
        yield Step(tuple(tokens), finish=FinishReason.LENGTH)

    async def read_prompt(self, request: EngineRequest, first: int = 0) -> Step:
        worker, sampling = self.worker, request.sampling
        if worker.error is not None:
            raise worker.error
        count = sampling.prompt_logprobs or 0
        tokens = self.worker.generate(request)
        answer = [*request.prompt, *tokens]

        def see(place: int) -> PositionLogprobs:
            shift = worker.noise * worker.dice.random()
            logprobs = [value - shift for value in find_logprobs(answer[place - 1], worker.weights)]
            return look(logprobs, answer[place], count)

        length = len(request.prompt)
        prompt = tuple(see(place) if place else None for place in range(first, length))
        logprobs = tuple(see(place) for place in range(length, len(answer)))
        finish = FinishReason.LENGTH
        return Step(tuple(tokens), logprobs=logprobs, prompt_logprobs=prompt, finish=finish)


@dataclass
class ToyFleet(Notes):
    """Also the notes of its audits."""

    fleet: Fleet
    panel: WorkerPanel
    auditor: Auditor = field(init=False)
    number: int = 0

    async def answer(self, sampling: Sampling, **more: Any) -> None:
        """Answer and audit one request."""
        self.number += 1
        prompt = tuple(Random(self.number).choices(range(VOCABULARY), k=8))
        request = EngineRequest(f"r{self.number}", prompt, sampling, **more)
        async for _ in read_steps(AuditedEngine(self.fleet, self.auditor).generate, request):
            pass
        await until(lambda: len(self.records) + len(self.drops) == self.number)

    def find_rules(self, sampling: Sampling, tie: float) -> ScoringRules:
        return replace(ScoringRules.of(EngineRequest("r", (1,), sampling), 0, ""), tie=tie)


@asynccontextmanager
async def toy_fleet(
    *workers: ToyWorker, holds: bool = False, write: EvidenceWriter = write_nothing
) -> AsyncIterator[ToyFleet]:
    """Workers ``w0``, ``w1`` and so on that the panel has probed."""
    by_name = {f"w{number}": worker for number, worker in enumerate(workers)}
    fleet = Fleet(lambda name: ToyEngine(by_name[name]), [StaticSource(by_name)], settings=RULES)
    town = ToyFleet(fleet, WorkerPanel(fleet, TEXT, lambda: True, holds))
    town.auditor = Auditor(
        1.0, AuditHolds(), town.records.append, town.drops.append, str, lambda: True, write,
        is_idle=lambda: True,
    )  # fmt: skip
    town.auditor.attach_workers(town.panel, fleet.generate)
    await fleet.start()
    tasks = [asyncio.create_task(work) for work in (town.auditor.run(), town.panel.run())]
    try:
        await until(lambda: len(town.panel.probed) == len(workers))
        yield town
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await fleet.aclose()
