"""Clients that connect and vanish at random moments; afterwards nothing of them may be left.

python -m tests.faults.vanish --clients 1000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import orjson

from tests.conftest import ADMIN, RunningGateway, serving
from tests.faults import engine_process, streams

TOGETHER = 32
LONGEST_S = 1.5
SETTLED_S = 30.0


@dataclass
class Left:
    """The gateway's state after the clients have left."""

    clients: int = 0
    running: float = 0
    inside: int = 0
    files_before: int = 0
    files_after: int = 0
    tasks_before: int = 0
    tasks_after: int = 0
    memory_before_mib: float = 0
    memory_after_mib: float = 0


async def vanish(host: str, port: int, number: int, chance: random.Random) -> None:
    """Send all or part of a request, listen for a moment, be gone."""
    body = orjson.dumps(streams.request("chat", number, 2000) | {"stream": chance.random() < 0.7})
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    message = head + body
    if chance.random() < 0.2:
        message = message[: chance.randrange(len(message))]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(message)
    try:
        async with asyncio.timeout(chance.random() * LONGEST_S):
            while await reader.read(4096):
                pass
    except (TimeoutError, ConnectionError):
        pass
    if chance.random() < 0.5:
        writer.transport.abort()
    writer.close()


async def crowd(gateway: RunningGateway, clients: int, seed: int) -> Left:
    url, chance, left = urlsplit(gateway.url), random.Random(seed), Left(clients)
    assert url.hostname is not None
    assert url.port is not None
    gate = asyncio.Semaphore(TOGETHER)

    async def one(number: int) -> None:
        async with gate:
            await vanish(url.hostname or "", url.port or 0, number, chance)

    await asyncio.gather(*(one(number) for number in range(TOGETHER)))
    await settled(gateway)
    left.files_before = engine_process.open_files(gateway.process.pid)
    left.tasks_before = count_tasks(gateway)
    left.memory_before_mib = engine_process.memory_mib(gateway.process.pid)
    await asyncio.gather(*(one(number) for number in range(clients)))
    left.inside = await settled(gateway)
    left.running = gateway.metric("vllm:num_requests_running") or 0
    left.files_after = engine_process.open_files(gateway.process.pid)
    left.tasks_after = count_tasks(gateway)
    left.memory_after_mib = engine_process.memory_mib(gateway.process.pid)
    return left


def count_tasks(gateway: RunningGateway) -> int:
    return int(httpx.get(f"{gateway.operator}/admin/status").json()["tasks"])


async def settled(gateway: RunningGateway) -> int:
    """Wait until nobody is inside; how many still are when patience ends."""
    inside = -1
    async with httpx.AsyncClient(base_url=gateway.operator) as client:
        for _ in range(int(SETTLED_S / 0.1)):
            inside = (await client.get("/admin/status")).json()["requests_inside"]
            running = gateway.metric("vllm:num_requests_running")
            if not inside and not running:
                break
            await asyncio.sleep(0.1)
    return inside


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "log", ADMIN) as gateway:
        left = asyncio.run(crowd(gateway, given.clients, given.seed))
    print(json.dumps(asdict(left), indent=2))
    return 1 if left.running or left.inside else 0


if __name__ == "__main__":
    sys.exit(main())
