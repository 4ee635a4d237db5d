"""The clock that waits and patience are measured with."""

from __future__ import annotations

import asyncio


def now() -> float:
    """The running event loop's time in seconds."""
    return asyncio.get_running_loop().time()
