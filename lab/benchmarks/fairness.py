"""Measure the effect of one key's flood on another key's latency, over HTTP.

    python -m eaglegate.lab.benchmarks.fairness [--engine-ms 1000] [--places 16]

The gateway runs on the scripted engine, whose places each serve a request in a known time, so that
only admission is measured. One key sends one request after another, alone and during a flood by
another key (``--flood`` connections that retry after a moment, whatever the answer), of the same
class and of a lower one. Phases take turns, so that other load on the machine affects all of them.
The result is the ratio of medians. If the processor is the bottleneck, it is measured instead: give
the engine more time (``--engine-ms``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from statistics import median

import uvicorn

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.lab.benchmarks.overload import BODY, exchange, start_server
from eaglegate.server.access.admission import AdmissionLimits
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.keys import KeyRing, hash_key
from eaglegate.server.cli.listener import bind, format_url
from eaglegate.text.events import FinishReason
from tests.server.conftest import Lab

SECRETS = {name: f"{name}-key-0123456789" for name in ("victim", "peer", "below")}
CLASSES = {"victim": Priority.NORMAL, "peer": Priority.NORMAL, "below": Priority.LOW}
BACK_OFF_S = 0.5
"""Pause of the flood. Without it, the HTTP server's processor would be measured."""


async def ask(url: str, key: str) -> int:
    head = f"x-api-key: {SECRETS[key]}\r\n"
    status, _ = await exchange(url, "POST", "/v1/chat/completions", head, BODY)
    return status


async def ask_in_turn(url: str, requests: int) -> list[float]:
    """Return the seconds of each of the victim's requests."""
    seconds = []
    for _ in range(requests):
        start = time.monotonic()
        assert await ask(url, "victim") == 200
        seconds.append(time.monotonic() - start)
    return seconds


async def flood(url: str, key: str, statuses: Counter[int]) -> None:
    while True:
        status = await ask(url, key)
        statuses[status] += 1
        if status != 200:
            await asyncio.sleep(BACK_OFF_S)


async def time_beside_flood(
    url: str, key: str, width: int, requests: int
) -> tuple[list[float], Counter[int]]:
    statuses: Counter[int] = Counter()
    tasks = [asyncio.create_task(flood(url, key, statuses)) for _ in range(width)]
    await asyncio.sleep(1.0)
    try:
        return await ask_in_turn(url, requests), statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1.0)


async def measure(url: str, width: int, rounds: int, requests: int) -> dict[str, object]:
    baseline: list[float] = []
    floods: dict[str, list[float]] = {"peer": [], "below": []}
    statuses: dict[str, Counter[int]] = {"peer": Counter(), "below": Counter()}
    await ask_in_turn(url, 3)
    for _ in range(rounds):
        baseline += await ask_in_turn(url, requests)
        for key, seconds in floods.items():
            times, counts = await time_beside_flood(url, key, width, requests)
            seconds += times
            statuses[key] += counts
    report: dict[str, object] = {
        "requests": len(baseline),
        "alone_ms": round(1000 * median(baseline), 1),
    }
    for key, seconds in floods.items():
        report[f"{key}_ms"] = round(1000 * median(seconds), 1)
        report[f"{key}_ratio"] = round(median(seconds) / median(baseline), 3)
        report[f"{key}_flood"] = dict(statuses[key])
    return report


async def serve(engine_s: float, places: int) -> None:
    """Run the server: print its address, and serve until stopped."""
    lab = Lab()
    end = Step(tuple(lab.renderer.encode("x", False)), finish=FinishReason.STOP)
    lab.engine.script = [Pause(engine_s), end]
    assert lab.gateway.pipeline is not None
    admission = lab.gateway.pipeline.admission
    admission.bounds = AdmissionLimits(running=places, queued=4 * places)
    lab.gateway.keys = KeyRing(
        tuple(ApiKey(name, hash_key(secret), CLASSES[name]) for name, secret in SECRETS.items())
    )
    admission.classes = lab.gateway.keys.classes
    listener = bind("127.0.0.1", 0)
    print(format_url(listener), flush=True)
    config = uvicorn.Config(lab.app, log_level="error", access_log=False, lifespan="off")
    await uvicorn.Server(config).serve(sockets=[listener])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine-ms", type=float, default=1000.0)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--flood", type=int, default=48, help="connections of the flooding key")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--requests", type=int, default=10, help="requests of the other key in a phase"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.engine_ms / 1000, options.places))
        return 0
    with start_server(
        "eaglegate.lab.benchmarks.fairness", options.engine_ms, options.places
    ) as url:
        report = asyncio.run(measure(url, options.flood, options.rounds, options.requests))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
