"""What a gateway does for its store now and then."""

from __future__ import annotations

import asyncio
import time

from server.apis.responses.background import HOLD_S
from server.apis.shared.gateway import Gateway

SWEEP_S = 600.0


async def maintain_store(gateway: Gateway, every_s: float = HOLD_S / 4) -> None:
    """Say which responses still run, and remove what is too old. Runs until it is cancelled."""
    swept = time.monotonic()
    while gateway.store is not None:
        await asyncio.sleep(every_s)
        await gateway.runs.hold(gateway.store)
        if time.monotonic() - swept >= SWEEP_S:
            swept = time.monotonic()
            await gateway.store.sweep()
