"""Fleets in front of scripted workers, closed behind each test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from tests.engine.fleet.town import Town, build_town


@pytest_asyncio.fixture
async def town() -> AsyncGenerator[Callable[..., Awaitable[Town]], None]:
    """Builds towns; see ``build_town``."""
    async with AsyncExitStack() as stack:

        async def build(*arguments: Any, **rules: Any) -> Town:
            made = await build_town(*arguments, **rules)
            stack.push_async_callback(made.fleet.aclose)
            return made

        yield build
