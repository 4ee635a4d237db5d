"""How long a request may take, counted from its arrival, whatever it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from server.errors import DeadlineExceeded

Yielded = TypeVar("Yielded")


class Deadline:
    """``at`` is the event loop's time; None never comes. Made on the loop it is used on."""

    def __init__(self, timeout_s: float | None, arrived: float) -> None:
        """``arrived`` by ``time.perf_counter()``."""
        self._timeout_s = timeout_s
        self.at: float | None = None
        if timeout_s is not None:
            spent = time.perf_counter() - arrived
            self.at = asyncio.get_running_loop().time() + timeout_s - spent

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """What is done inside ends with DeadlineExceeded when the deadline comes."""
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
        """``source``, which is closed when the deadline comes."""
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
