"""Deadline of a request, counted from its arrival."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from server.errors import DeadlineExceeded

Yielded = TypeVar("Yielded")


class Deadline:
    """``at`` is in the event loop's time, None for no deadline. Belongs to the running loop."""

    def __init__(self, timeout_s: float | None, arrived: float) -> None:
        """``arrived`` by ``time.perf_counter()``."""
        self._timeout_s = timeout_s
        self.at: float | None = None
        if timeout_s is not None:
            spent = time.perf_counter() - arrived
            self.at = asyncio.get_running_loop().time() + timeout_s - spent

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Raises DeadlineExceeded inside the block when the deadline passes."""
        timeout = asyncio.timeout_at(self.at)
        try:
            async with timeout:
                yield
        except TimeoutError:
            if not timeout.expired():
                raise
            raise DeadlineExceeded(
                f"The request did not finish within {self._timeout_s:g} s (x-request-timeout or "
                "--request-timeout-s)."
            ) from None

    def enforce(self, source: AsyncGenerator[Yielded, None]) -> AsyncGenerator[Yielded, None]:
        """``source``, closed with DeadlineExceeded when the deadline passes."""
        return source if self.at is None else self._enforce(source)

    async def _enforce(
        self, source: AsyncGenerator[Yielded, None]
    ) -> AsyncGenerator[Yielded, None]:
        async with aclosing(source) as items:
            while True:
                async with self.limit():
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield item
