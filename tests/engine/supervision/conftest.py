"""Engines under supervision, closed behind each test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest_asyncio

from eaglegate.engine.supervision.policy import SupervisionTimeouts
from eaglegate.engine.supervision.supervisor import SupervisedEngine
from tests.engine.supervision.mortal import FAST, Cradle, Notes, supervised

Supervise = Callable[..., Awaitable[tuple[SupervisedEngine, Notes]]]


@pytest_asyncio.fixture
async def supervise() -> AsyncGenerator[Supervise, None]:
    """Starts the first engine of a cradle."""
    async with AsyncExitStack() as stack:

        async def start(
            cradle: Cradle, timeouts: SupervisionTimeouts = FAST
        ) -> tuple[SupervisedEngine, Notes]:
            engine, notes = supervised(cradle, timeouts)
            stack.push_async_callback(engine.aclose)
            await engine.start()
            return engine, notes

        yield start
