"""Serve for a while and look at what grows: memory, open files, tasks, requests inside.

    python -m tests.faults.soak --minutes 30

Clients of every kind: streams, whole answers, stored responses, some that leave in the middle, some
that are refused. Slopes are Theil-Sen's over the second half, when caches are warm: the median of
the slopes between all pairs of samples, which a single jump does not move.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

import httpx

from tests.conftest import ADMIN, RunningGateway, serving
from tests.faults import engine_process, streams, vanish

CLIENTS = 4
SAMPLE_S = 2.0
LEFT = "left"
"""Workload that clients who leave ask for: it is counted apart where a gateway knows it."""


@dataclass(frozen=True)
class Sample:
    """Memory in MiB, open files and tasks at one moment."""

    at: float
    memory: float
    engine_memory: float
    files: float
    tasks: float


@dataclass
class Found:
    """Results of a soak."""

    minutes: float
    answers: dict[str, int] = field(default_factory=dict)
    first: Sample | None = None
    last: Sample | None = None
    per_minute: dict[str, float] = field(default_factory=dict)
    """Slopes of the second half."""
    inside_afterwards: int = 0
    tasks_left: float = 0.0
    """Tasks that were not there before the first client."""
    files_left: float = 0.0

    def note(self, kind: str) -> None:
        self.answers[kind] = self.answers.get(kind, 0) + 1


async def client(
    http: httpx.AsyncClient, end: float, chance: random.Random, found: Found, pause_s: float
) -> None:
    while time.monotonic() < end:
        way, body = draw(chance)
        await way(http, body)
        found.note(way.__name__)
        await asyncio.sleep(pause_s)


Way = Callable[[httpx.AsyncClient, dict], Awaitable[int]]
"""Sends one request and returns the output tokens of its whole answer."""


def draw(chance: random.Random) -> tuple[Way, dict]:
    """Draw a way to ask, and a request."""
    way = chance.choice((streamed, streamed, streamed, whole, stored, left, refused))
    kind, number = chance.choice(streams.KINDS), chance.randrange(100)
    return way, streams.request(kind, number, chance.randrange(8, 200))


async def streamed(http: httpx.AsyncClient, body: dict) -> int:
    heard = await streams.hear(http, body)
    assert heard.whole, heard.error
    return heard.usage["completion_tokens"]


async def whole(http: httpx.AsyncClient, body: dict) -> int:
    del body["stream"], body["stream_options"]
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["completion_tokens"]


async def stored(http: httpx.AsyncClient, body: dict) -> int:
    asked = {"model": "demo", "input": body["messages"], "max_output_tokens": body["max_tokens"]}
    made = (await http.post("/v1/responses", json=asked)).json()
    assert (await http.get(f"/v1/responses/{made['id']}")).json()["output"] == made["output"]
    return made["usage"]["output_tokens"]


async def left(http: httpx.AsyncClient, body: dict) -> int:
    headers = {"x-eaglegate-workload": LEFT}
    url = "/v1/chat/completions"
    async with http.stream("POST", url, json=body, headers=headers) as answer:
        async for _ in answer.aiter_raw():
            break
    return 0


async def refused(http: httpx.AsyncClient, body: dict) -> int:
    answer = await http.post("/v1/chat/completions", json=body | {"temperature": "hot"})
    assert answer.status_code == 400
    return 0


async def soak(
    gateway: RunningGateway, minutes: float, seed: int = 1, pause_s: float = 0.0
) -> Found:
    found, samples = Found(minutes), []
    async with httpx.AsyncClient(base_url=gateway.url, timeout=300) as http:
        before = await sample(gateway, http)
        end = time.monotonic() + 60 * minutes
        clients = [
            asyncio.create_task(client(http, end, random.Random(seed + at), found, pause_s))
            for at in range(CLIENTS)
        ]
        while time.monotonic() < end:
            await asyncio.sleep(SAMPLE_S)
            samples.append(await sample(gateway, http))
        await asyncio.gather(*clients)
    found.inside_afterwards = await vanish.settled(gateway)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=300) as http:
        after = await sample(gateway, http)
    found.first, found.last = before, after
    found.tasks_left, found.files_left = after.tasks - before.tasks, after.files - before.files
    warm = samples[len(samples) // 2 :]
    for name in ("memory", "engine_memory", "files", "tasks"):
        points = [(each.at / 60, getattr(each, name)) for each in warm]
        found.per_minute[name] = round(slope(points), 3)
    return found


async def sample(gateway: RunningGateway, http: httpx.AsyncClient) -> Sample:
    pid = gateway.process.pid
    engine = engine_process.engine_pid(pid)
    return Sample(
        time.monotonic(),
        engine_process.memory_mib(pid),
        engine_process.memory_mib(engine) if engine else 0.0,
        engine_process.open_files(pid),
        (await http.get(f"{gateway.operator}/admin/status")).json()["tasks"],
    )


def slope(points: list[tuple[float, float]]) -> float:
    """Theil-Sen."""
    return statistics.median(list_slopes(points))


def list_slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    """The slopes between all pairs of points, sorted."""
    pairs = combinations(points, 2)
    return sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause-s", type=float, default=0.0, help="between two requests")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "log", ADMIN) as gateway:
        found = asyncio.run(soak(gateway, given.minutes, given.seed, given.pause_s))
    print(json.dumps(asdict(found), indent=2))
    return 1 if found.inside_afterwards else 0


if __name__ == "__main__":
    sys.exit(main())
