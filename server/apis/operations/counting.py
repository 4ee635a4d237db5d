"""Requests that generate nothing pass admission and quota like all others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from engine.rendering.limits import PromptTooLong, RenderLimits
from server.access.caller import caller
from server.generation.context import overflow
from server.generation.deadline import Deadline
from server.generation.generate import Path

CONTEXTS = 4
"""Prompts are counted up to so many times the model's context length; longer ones are refused."""


@asynccontextmanager
async def admitted(path: Path, arrived: float) -> AsyncIterator[None]:
    """Enter, in time; what is done inside takes no place in the engine. Raises GatewayError."""
    who = caller.get()
    deadline = Deadline(who.timeout_s, arrived)
    with path.admission.enter(who.visitor(deadline.at)):
        async with deadline.limit():
            yield


async def counted(
    path: Path, api: str, arrived: float, count: Callable[[RenderLimits], Awaitable[list[int]]]
) -> list[int]:
    """The tokens of a prompt that nothing is generated for. Raises GatewayError."""
    longest = path.info.max_model_len
    async with admitted(path, arrived):
        try:
            return await count(RenderLimits(max_tokens=CONTEXTS * longest))
        except PromptTooLong as error:
            raise overflow(api, error.at_least, 0, longest) from None
