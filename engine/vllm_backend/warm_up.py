"""What a new engine runs before it serves: a request at every depth, and steps that are timed.

Steps are timed so that the depth planner's first plans are sensible. An engine that takes the place
of a lost one is given the step costs that the first had learnt by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.errors import EngineError
from engine.types import EngineInfo, EngineRequest, Sampling, Step

log = logging.getLogger(__name__)

WARM_UP_PROMPT = (1, 2, 3, 4)
PROFILE_BATCHES = (1, 4, 16)
PROFILE_STEPS = 6

Generate = Callable[[EngineRequest], AsyncGenerator[Step, None]]
Progress = Callable[[str], None]
Steer = Callable[..., Awaitable[Any]]
"""Calls a method that ``scheduler.py`` adds to the engine process."""


class StepCosts:
    """What an engine has learnt of its steps as it started. Outlives it.

    For the engines of one gateway: they differ in nothing that costs time, since a draft that takes
    the place of another has its shapes. What traffic has taught a planner is not handed over.
    """

    def __init__(self) -> None:
        self._learnt: Mapping[str, object] | None = None

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
        try:
            costs = await steer("export_costs")
        except EngineError:
            raise
        except Exception as error:
            log.warning("step costs cannot be kept for a later engine: %s", error)
            return
        if costs:
            self._learnt = costs


async def warm_up(generate: Generate, info: EngineInfo, progress: Progress) -> None:
    """Generate past the first drafts at every depth: one that kills the engine does so now."""
    for depth in range(info.speculation.depth, -1, -1):
        progress(f"warming up at depth {depth}")
        await _drain(generate(_make_warm_up_request(depth, info)))


async def time_steps(generate: Generate, info: EngineInfo, most: int, progress: Progress) -> None:
    """Have the planner see steps of several sizes, of ``most`` requests at most.

    A batch in which every second request drafts nothing tells verifying from drafting.
    """
    depths = sorted({0, 1, (info.speculation.depth + 1) // 2, info.speculation.depth})
    for batch in sorted({min(size, most) for size in PROFILE_BATCHES}):
        progress(f"timing steps of {batch} requests")
        for depth in depths:
            for other in {depth, 0} if batch > 1 else {depth}:
                requests = [
                    _make_profile_request(f"{at}-{batch}-{depth}-{other}", own, info)
                    for at in range(batch)
                    for own in [other if at % 2 else depth]
                ]
                await asyncio.gather(*(_drain(generate(one)) for one in requests))


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


async def _drain(steps: AsyncGenerator[Step, None]) -> None:
    async for _ in steps:
        pass
