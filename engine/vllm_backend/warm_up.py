"""First requests of a new engine, before it serves: one at every depth, and steps that are timed.

Steps are timed so that the depth planner's first plans are sensible. An engine that takes the place
of a lost one is given the step costs that the last one had learnt.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.errors import EngineError
from eaglegate.engine.steps import Generate, NullSink
from eaglegate.engine.types import EngineInfo, EngineRequest, Sampling

log = logging.getLogger(__name__)

WARM_UP_PROMPT = (1, 2, 3, 4)
PROFILE_BATCHES = (1, 4, 16)
PROFILE_STEPS = 6
SAVE_EVERY_S = 10.0
TIMING_S = 3.0
"""Seconds of a start that timing steps may take, whatever the machine."""

Progress = Callable[[str], None]
Steer = Callable[..., Awaitable[Any]]
"""Calls a method that ``scheduler.py`` adds to the engine process."""


class StepCosts:
    """Step costs that an engine has learnt, at its start and from traffic. They outlive it.

    For the engines of one gateway: they differ in nothing that costs time, since a draft that takes
    the place of another has its shapes. What traffic accepts is not handed over. A lost engine can
    no longer be asked, so its costs are saved while it serves.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._learnt: Mapping[str, object] | None = None
        self._saved_at = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether nothing was saved for ``SAVE_EVERY_S``."""
        return self._clock() - self._saved_at >= SAVE_EVERY_S

    async def hand_over(self, steer: Steer) -> bool:
        """Give an engine those of the first; False where its steps must be timed."""
        if self._learnt is None:
            return False
        try:
            if await steer("restore_costs", self._learnt):
                return True
            log.warning("the last engine's step costs do not fit this one")
        except EngineError:
            raise
        except Exception as error:
            log.warning("step costs could not be handed over: %s", error)
        return False

    async def save(self, steer: Steer) -> None:
        """Keep what an engine has learnt, for the next one."""
        self._saved_at = self._clock()
        try:
            costs = await steer("export_costs")
        except EngineError:
            raise
        except Exception as error:
            log.warning("step costs cannot be kept for a later engine: %s", error)
            return
        if costs:
            self._learnt = costs


async def warm_up(generate: Generate, info: EngineInfo, progress: Progress) -> float:
    """Generate past the first drafts at every depth there is: one that kills the engine does so
    now. A method whose depth is fixed has one.

    Returns the seconds per token of the last request, which drafts nothing.
    """
    loop = asyncio.get_running_loop()
    token_s, most = 0.0, info.speculation.depth
    for depth in range(most, -1, -1) if info.speculation.per_request else (most,):
        progress(f"warming up at depth {depth}")
        request, began = _make_warm_up_request(depth, info), loop.time()
        await generate(request, NullSink())
        token_s = (loop.time() - began) / max(1, request.sampling.max_tokens)
    return token_s


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """Requests that are decoded together; every second one drafts ``other`` tokens."""

    size: int
    depth: int
    other: int


def list_batches(depth: int, most: int) -> Iterator[TimedBatch]:
    """The batches to time, of ``most`` requests at most, those that tell most first.

    A request alone at no depth and at the greatest tells what drafting costs, and the same for
    several what a request adds; depths between follow a line closely. Every size is timed before
    any of the rest. A batch of unlike requests tells verifying from drafting.
    """
    sizes = sorted({min(size, most) for size in PROFILE_BATCHES})
    for size in sizes:
        yield TimedBatch(size, 0, 0)
        yield TimedBatch(size, depth, depth)
    for size in sizes:
        for between in sorted({1, (depth + 1) // 2} - {depth}):
            yield TimedBatch(size, between, between)
        if size > 1:
            for own in sorted({1, (depth + 1) // 2, depth}):
                yield TimedBatch(size, own, 0)


async def time_steps(
    generate: Generate,
    info: EngineInfo,
    most: int,
    progress: Progress,
    budget_s: float = TIMING_S,
    step_s: float = 0.0,
) -> bool:
    """Have the planner see steps of several sizes, for ``budget_s`` seconds; False where that was
    not enough for all of them. Traffic teaches it the rest.

    ``step_s``: seconds of a step of one request. No step is begun that would pass the budget, as
    far as the last batch tells: a step that runs cannot be ended.
    """
    loop = asyncio.get_running_loop()
    end, last = loop.time() + budget_s, 1
    for batch in list_batches(info.speculation.depth, most):
        began = loop.time()
        latest = end - step_s * max(1.0, batch.size / last)
        if began >= latest:
            return False
        progress(f"timing steps of {batch.size} requests at depth {batch.depth}")
        try:
            async with asyncio.timeout_at(latest):
                await _run_batch(generate, batch, info)
        except TimeoutError:
            return False
        step_s, last = (loop.time() - began) / PROFILE_STEPS, batch.size
    return True


async def _run_batch(generate: Generate, batch: TimedBatch, info: EngineInfo) -> None:
    async with asyncio.TaskGroup() as running:
        for at in range(batch.size):
            name = f"{at}-{batch.size}-{batch.depth}-{batch.other}"
            depth = batch.other if at % 2 else batch.depth
            request = _make_profile_request(name, depth, info)
            running.create_task(generate(request, NullSink()))


def _make_warm_up_request(depth: int, info: EngineInfo) -> EngineRequest:
    tokens = min(2 * (depth + 1) + 2, info.max_model_len - len(WARM_UP_PROMPT))
    return EngineRequest(
        id=f"warm-up-{depth}",
        prompt=tuple(min(token, info.vocab_size - 1) for token in WARM_UP_PROMPT),
        sampling=Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        depth=depth,
    )


def _make_profile_request(name: str, depth: int, info: EngineInfo) -> EngineRequest:
    """Long enough for ``PROFILE_STEPS`` steps if every draft token is accepted."""
    tokens = min(PROFILE_STEPS * (depth + 1), info.max_model_len - len(WARM_UP_PROMPT))
    return replace(
        _make_warm_up_request(depth, info),
        id=f"profile-{name}",
        sampling=Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        workload="warm-up",
        tenant="warm-up",
    )
