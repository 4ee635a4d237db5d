"""A worker session: one engine object that drives a worker, from admission to close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.base import Engine
from engine.supervision.policy import StallDetector
from engine.types import EngineInfo

log = logging.getLogger(__name__)

CLOSE_S = 10.0
"""An engine that cannot be closed in this time is left behind."""


class WorkerSession:
    """Retired, it takes no new requests and is closed when the last one has ended."""

    def __init__(self, engine: Engine, info: EngineInfo) -> None:
        self.engine = engine
        self.info = info
        self.stall_detector = StallDetector()
        self.closed = asyncio.Event()
        self.stalled = False
        """It was given up in silence, with several requests in it."""
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a request is in it."""
        try:
            with self.stall_detector.track():
                yield
        finally:
            self._close_if_idle()

    def retire(self) -> None:
        self._retired = True
        self._close_if_idle()

    def cut(self) -> None:
        """Close it now: what runs in it ends with EngineDead."""
        self._retired = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    def _close_if_idle(self) -> None:
        if self._retired and not self.stall_detector.num_running:
            self.cut()

    async def _close(self) -> None:
        await close_engine(self.engine)
        self.closed.set()


async def close_engine(engine: Engine) -> None:
    """Within bounds."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await engine.aclose()
    except TimeoutError:
        log.error("an engine could not be closed in %g s", CLOSE_S)
    except Exception:
        log.exception("an engine could not be closed")
