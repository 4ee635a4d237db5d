"""An ASGI app on a free loopback port, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.engine.remote.stand_in_worker import serving


@contextmanager
def serve_in_thread(app: Any) -> Iterator[str]:
    """Serve ``app`` until the block ends; yield its URL."""
    loop = asyncio.new_event_loop()
    running = serving(app)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(30)
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
