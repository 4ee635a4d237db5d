"""Ten times more load than can be served: goodput, refusals, and answers of /health.

    python -m eaglegate.lab.benchmarks.overload [--engine-ms 500] [--places 2]

The gateway runs on the scripted engine, whose places each serve a request in a known time, so that
only admission is measured. The load is an open loop: no client waits for another. A request is good
if it was answered within its deadline (x-request-timeout). Only ratios within one run count:
absolute numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

import uvicorn

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.admission import AdmissionLimits
from eaglegate.server.cli.listener import bind, format_url
from eaglegate.text.events import FinishReason
from tests.server.conftest import Lab

BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "x"}]}'
LOADS = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class LoadRecord:
    """Results at one load."""

    num_sent: int = 0
    num_good: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    retry_after_s: list[int] = field(default_factory=list)
    without_retry_after: int = 0
    health_s: list[float] = field(default_factory=list)


async def offer(url: str, rate: float, seconds: float, deadline_s: float) -> LoadRecord:
    record: LoadRecord = LoadRecord()
    tasks: set[asyncio.Task[None]] = set()
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        num_due = int((time.monotonic() - start) * rate) - record.num_sent
        for _ in range(num_due):
            record.num_sent += 1
            tasks.add(asyncio.create_task(ask(url, deadline_s, record)))
        await health(url, record)
        await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)
    return record


async def ask(url: str, deadline_s: float, record: LoadRecord) -> None:
    start = time.monotonic()
    head = f"x-request-timeout: {deadline_s}\r\n"
    status, headers = await exchange(url, "POST", "/v1/chat/completions", head, BODY)
    record.statuses[status] += 1
    record.num_good += status == 200 and time.monotonic() - start <= deadline_s
    if status == 429:
        if b"retry-after" in headers:
            record.retry_after_s.append(int(headers[b"retry-after"]))
        else:
            record.without_retry_after += 1


async def health(url: str, record: LoadRecord) -> None:
    start = time.monotonic()
    status, _ = await exchange(url, "GET", "/health")
    assert status == 200
    record.health_s.append(time.monotonic() - start)


async def exchange(
    url: str, method: str, path: str, head: str = "", body: bytes = b""
) -> tuple[int, dict[bytes, bytes]]:
    """Make one request on its own connection, at little cost to the client."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n{head}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        answer = await reader.read()
    finally:
        writer.close()
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    fields = (line.partition(b": ") for line in lines[1:])
    return int(lines[0].split()[1]), {name.lower(): value for name, _, value in fields}


async def serve(engine_s: float, places: int) -> None:
    """Run the server: print its address, and serve until stopped."""
    lab = Lab()
    end = Step(tuple(lab.renderer.encode("x", False)), finish=FinishReason.STOP)
    lab.engine.script = [Pause(engine_s), end]
    assert lab.gateway.pipeline is not None
    lab.gateway.pipeline.admission.bounds = AdmissionLimits(running=places, queued=4 * places)
    listener = bind("127.0.0.1", 0)
    print(format_url(listener), flush=True)
    config = uvicorn.Config(lab.app, log_level="error", access_log=False, lifespan="off")
    await uvicorn.Server(config).serve(sockets=[listener])


async def measure(url: str, capacity: float, seconds: float, deadline_s: float) -> list[LoadRecord]:
    await offer(url, capacity / 2, 2.0, deadline_s)
    out = []
    for load in LOADS:
        out.append(await offer(url, load * capacity, seconds, deadline_s))
        print(json.dumps(report(load, out[-1], seconds)), flush=True)
    return out


@contextmanager
def start_server(module: str, engine_ms: float, places: int) -> Iterator[str]:
    """Run ``module --serve`` in a process of its own, so that the load does not slow it down."""
    arguments = ["--serve", "--engine-ms", str(engine_ms), "--places", str(places)]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def report(load: float, record: LoadRecord, seconds: float) -> dict[str, object]:
    delays = record.retry_after_s
    return {
        "load": load,
        "sent_per_s": round(record.num_sent / seconds, 1),
        "good_per_s": round(record.num_good / seconds, 1),
        "statuses": dict(record.statuses),
        "retry_after_s": [min(delays), median(delays), max(delays)] if delays else None,
        "without_retry_after": record.without_retry_after,
        "slowest_health_ms": round(1000 * max(record.health_s)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine-ms", type=float, default=500.0)
    parser.add_argument("--places", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--deadline-s", type=float, default=4.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.engine_ms / 1000, options.places))
        return 0
    capacity = 1000 * options.places / options.engine_ms
    with start_server(
        "eaglegate.lab.benchmarks.overload", options.engine_ms, options.places
    ) as url:
        records = asyncio.run(measure(url, capacity, options.seconds, options.deadline_s))
    share = records[-1].num_good / max(record.num_good for record in records)
    print(f"goodput at {LOADS[-1]:g} times the capacity: {share:.0%} of its peak")
    return 0


if __name__ == "__main__":
    sys.exit(main())
