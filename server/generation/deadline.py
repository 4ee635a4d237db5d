"""Deadline of a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from eaglegate.server.errors import DeadlineExceeded


class Deadline:
    """Deadline of a request. ``at`` is in the event loop's time; None for no deadline."""

    def __init__(self, timeout_s: float | None, arrival: float) -> None:
        """Create the deadline in the running loop; ``arrival`` is from ``time.perf_counter()``."""
        self._timeout_s = timeout_s
        self.at: float | None = None
        if timeout_s is not None:
            elapsed_s = time.perf_counter() - arrival
            self.at = asyncio.get_running_loop().time() + timeout_s - elapsed_s

    def limit(self) -> AbstractAsyncContextManager[None]:
        """Return a context that raises DeadlineExceeded when the deadline passes."""
        return nullcontext() if self.at is None else self._limit()

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
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
