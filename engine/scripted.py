"""Scripted engine: replays steps, pauses and errors, for tests and load on the HTTP layer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import EngineDead, EngineError
from eaglegate.engine.speculation.accounts.accounting import intern_step, trim_decode
from eaglegate.engine.steps import put
from eaglegate.engine.types import (
    EngineInfo,
    EngineRequest,
    Health,
    SpeculationInfo,
    Step,
    StepSink,
)
from eaglegate.text.events import FinishReason

DEFAULT_INFO = EngineInfo(
    model="scripted",
    max_model_len=4096,
    vocab_size=2048,
    speculation=SpeculationInfo(method="none", depth=0, summary="scripted engine"),
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long before the next item of a script."""

    seconds: float


ScriptItem = Step | Pause | EngineError
Script = Sequence[ScriptItem] | Callable[[EngineRequest], Iterable[ScriptItem]]


def steps(
    token_ids: Sequence[int],
    cuts: Iterable[int] = (),
    finish: FinishReason = FinishReason.STOP,
    depth: int = 3,
) -> list[Step]:
    """Cut ``token_ids`` into steps of the given sizes (then 1 each), accounted as verify steps."""
    sizes = iter(cuts)
    result: list[Step] = []
    offset = 0
    while offset < len(token_ids):
        size = max(1, next(sizes, 1))
        piece = tuple(token_ids[offset : offset + size])
        num_accepted = len(piece) - 1
        decode = (
            ()
            if offset == 0
            else (intern_step(max(depth, num_accepted), num_accepted, len(piece)),)
        )
        offset += size
        result.append(
            Step(piece, decode=decode, finish=finish if offset >= len(token_ids) else None)
        )
    return result or [Step((), finish=finish)]


@dataclass
class ScriptedEngine(Engine):
    """Engine that plays ``script`` for every request and records the requests.

    A script is a list of steps, pauses and errors, or a function that makes one from the request.
    It ends early at ``max_tokens``, as a real engine does. ``running`` holds the ids of requests in
    progress, ``aborted`` the ids of requests that were closed before their end.
    """

    script: Script = ()
    info: EngineInfo = DEFAULT_INFO
    requests: list[EngineRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    dead: str = ""
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> EngineInfo:
        return self.info

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        self.requests.append(request)
        self.running.add(request.id)
        is_finished = False
        try:
            async with aclosing(self._play(request)) as stream:
                async for step in stream:
                    is_finished = step.finish is not None
                    await put(step, sink)
        except EngineError:
            is_finished = True
            raise
        finally:
            self.running.discard(request.id)
            if not is_finished:
                self.aborted.append(request.id)

    async def _play(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        items = self.script(request) if callable(self.script) else self.script
        budget = request.sampling.max_tokens
        for item in items:
            if self.dead:
                raise EngineDead(self.dead)
            if isinstance(item, EngineError):
                raise item
            if isinstance(item, Pause):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.closed.wait(), item.seconds)
                continue
            step = _limit(item, budget)
            budget -= len(step.token_ids)
            yield step
            if step.finish is not None:
                return
            await asyncio.sleep(0)

    async def health(self) -> Health:
        return Health(live=not self.dead, reason=self.dead)

    async def aclose(self) -> None:
        self.dead = "the engine was closed"
        self.closed.set()


def _limit(step: Step, budget: int) -> Step:
    """Cut the step as a real engine would when ``budget`` tokens remain."""
    if len(step.token_ids) < budget or (len(step.token_ids) == budget and step.finish):
        return step
    excess = len(step.token_ids) - budget
    return Step(
        step.token_ids[:budget],
        decode=trim_decode(step.decode, excess),
        logprobs=step.logprobs[:budget],
        prompt_logprobs=step.prompt_logprobs,
        cached_tokens=step.cached_tokens,
        recomputed_tokens=step.recomputed_tokens,
        finish=FinishReason.LENGTH,
    )
