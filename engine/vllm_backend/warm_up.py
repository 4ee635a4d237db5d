"""First requests of a new engine before it serves: one at every depth, and steps that are timed.

Steps are timed so that the depth planner's first plans are sensible. An engine that replaces a lost
one gets the step costs that the lost engine had learnt.
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
LARGE_BATCHES = (64, 256)
"""Batches in which a GPU may compute for longer than it reads weights. They are timed last."""
PROFILE_STEPS = 6
SAVE_EVERY_S = 10.0
TIMING_S = 3.0
"""Most seconds that timing steps may add to a start, on any machine."""

Progress = Callable[[str], None]
Steer = Callable[..., Awaitable[Any]]
"""Function that calls a method which ``scheduler.py`` adds to the engine process."""


class StepCosts:
    """Step costs that an engine has learnt at its start and from traffic. They outlive the engine.

    They are valid for all engines of one gateway, which cost the same time: a draft that replaces
    another one has the same shapes. The acceptance of traffic is not handed over. A lost engine
    cannot be asked, so its costs are saved while it serves.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._costs: Mapping[str, object] | None = None
        self._saved_at = -math.inf

    @property
    def is_due(self) -> bool:
        """True if nothing was saved for ``SAVE_EVERY_S``."""
        return self._clock() - self._saved_at >= SAVE_EVERY_S

    async def hand_over(self, steer: Steer) -> bool:
        """Give an engine the saved costs. Return False if its steps must be timed."""
        if self._costs is None:
            return False
        try:
            if await steer("restore_costs", self._costs):
                return True
            log.warning("the last engine's step costs do not fit this one")
        except EngineError:
            raise
        except Exception as error:
            log.warning("step costs could not be handed over: %s", error)
        return False

    async def save(self, steer: Steer) -> None:
        """Save the costs that an engine has learnt, for the next engine."""
        self._saved_at = self._clock()
        try:
            costs = await steer("export_costs")
        except EngineError:
            raise
        except Exception as error:
            log.warning("step costs cannot be kept for a later engine: %s", error)
            return
        if costs:
            self._costs = costs


async def warm_up(generate: Generate, info: EngineInfo, progress: Progress) -> float:
    """Generate past the first drafts at every depth, so that a depth that kills the engine does so
    now. A method with a fixed depth has one.

    Returns the seconds per token of the last request, which drafts nothing.
    """
    loop = asyncio.get_running_loop()
    token_s, max_depth = 0.0, info.speculation.depth
    for depth in range(max_depth, -1, -1) if info.speculation.per_request else (max_depth,):
        progress(f"warming up at depth {depth}")
        request, start = _make_warm_up_request(depth, info), loop.time()
        await generate(request, NullSink())
        token_s = (loop.time() - start) / max(1, request.sampling.max_tokens)
    return token_s


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """Requests that are decoded together. Every second one drafts ``other_depth`` tokens."""

    size: int
    depth: int
    other_depth: int


def list_batches(depth: int, max_requests: int) -> Iterator[TimedBatch]:
    """Yield the batches to time, of at most ``max_requests``, the most informative ones first.

    A single request at depth 0 and at the greatest depth shows the cost of drafting. The same for
    several requests shows the cost of a request. Depths between follow a line closely. Every size
    is timed before the rest. A batch of requests with different depths separates the cost of
    verifying from that of drafting. Larger batches follow at the depths among which they choose.
    """
    sizes = sorted({min(size, max_requests) for size in PROFILE_BATCHES})
    large_sizes = sorted({min(size, max_requests) for size in LARGE_BATCHES} - {*sizes})
    for size in sizes:
        yield TimedBatch(size, 0, 0)
        yield TimedBatch(size, depth, depth)
    for size in sizes:
        for middle_depth in sorted({1, (depth + 1) // 2} - {depth}):
            yield TimedBatch(size, middle_depth, middle_depth)
        if size > 1:
            for mixed_depth in sorted({1, (depth + 1) // 2, depth}):
                yield TimedBatch(size, mixed_depth, 0)
    for size in large_sizes:
        for large_depth in sorted({0, 1, (depth + 1) // 2, depth}):
            yield TimedBatch(size, large_depth, large_depth)


async def time_steps(
    generate: Generate,
    info: EngineInfo,
    max_requests: int,
    progress: Progress,
    budget_s: float = TIMING_S,
    step_s: float = 0.0,
) -> bool:
    """Run steps of several sizes for ``budget_s`` seconds, so that the planner learns their costs.

    Returns False if the time was not enough for all sizes; the planner learns the rest from
    traffic. ``step_s`` is the time of a step of one request. No step is begun that would exceed the
    budget, judged by the last batch, because a running step cannot be stopped.
    """
    loop = asyncio.get_running_loop()
    end, last_size = loop.time() + budget_s, 1
    for batch in list_batches(info.speculation.depth, max_requests):
        start = loop.time()
        deadline = end - step_s * max(1.0, batch.size / last_size)
        if start >= deadline:
            return False
        progress(f"timing steps of {batch.size} requests at depth {batch.depth}")
        try:
            async with asyncio.timeout_at(deadline):
                await _run_batch(generate, batch, info)
        except TimeoutError:
            return False
        step_s, last_size = (loop.time() - start) / PROFILE_STEPS, batch.size
    return True


async def _run_batch(generate: Generate, batch: TimedBatch, info: EngineInfo) -> None:
    async with asyncio.TaskGroup() as group:
        for index in range(batch.size):
            name = f"{index}-{batch.size}-{batch.depth}-{batch.other_depth}"
            depth = batch.other_depth if index % 2 else batch.depth
            request = _make_profile_request(name, depth, info)
            group.create_task(generate(request, NullSink()))


def _make_warm_up_request(depth: int, info: EngineInfo) -> EngineRequest:
    tokens = min(2 * (depth + 1) + 2, info.max_model_len - len(WARM_UP_PROMPT))
    return EngineRequest(
        id=f"warm-up-{depth}",
        prompt=tuple(min(token, info.vocab_size - 1) for token in WARM_UP_PROMPT),
        sampling=Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        depth=depth,
    )


def _make_profile_request(name: str, depth: int, info: EngineInfo) -> EngineRequest:
    """Return a request with ``PROFILE_STEPS`` steps even if every draft token is accepted."""
    tokens = min(PROFILE_STEPS * (depth + 1), info.max_model_len - len(WARM_UP_PROMPT))
    return replace(
        _make_warm_up_request(depth, info),
        id=f"profile-{name}",
        sampling=Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        workload="warm-up",
        tenant="warm-up",
    )
