"""Sends requests of ``tests/attacks/grammar.py`` and says what must not have happened.

python -m tests.attacks.fuzz [--requests 20000] [--seed 1]

Nothing may hang, nothing may be a 5xx, every error has the API's shape, and every stream ends as
its API says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter

import httpx

from tests.attacks.grammar import RequestGrammar
from tests.attacks.run import running
from tests.faults.fuzz import shaped

HANG_S = 30.0
TOGETHER = 8
REMEMBERED = 50
NEVER = ("5xx", "hang", "broken", "misshapen", "unended")
LAST = (
    *(f'"type":"response.{end}"'.encode() for end in ("completed", "failed", "incomplete")),
    b'"type":"response.cancelled"',
    b'"type":"message_stop"',
    b'"type":"error"',
    b"data: [DONE]",
)
"""Marks of a last frame: every stream's last frame has one of them."""


class Fuzz:
    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self._client = client
        self._grammar = RequestGrammar(seed)

    async def run(self, requests: int) -> None:
        left = iter(range(requests))
        async with asyncio.TaskGroup() as group:
            for _ in range(TOGETHER):
                group.create_task(self._send_some(left))
        alive = await self._client.get("/health")
        self.seen["dead"] = int(alive.status_code != 200)

    async def _send_some(self, left: object) -> None:
        for _ in left:  # type: ignore[attr-defined]
            await self._send(*self._grammar.request())

    async def _send(self, method: str, path: str, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        began = time.perf_counter()
        try:
            answer = await self._client.request(method, path, content=body, headers=headers)
            found = self._judge(path, answer)
        except httpx.TimeoutException:
            found = "hang"
        except httpx.TransportError as error:
            found = "broken"
            print(repr(error), file=sys.stderr)
        self.slowest = max(self.slowest, time.perf_counter() - began)
        self.seen[found] += 1
        if found in NEVER:
            print(f"{found}: {method} {path} {body.decode('utf-8', 'replace')}", file=sys.stderr)

    def _judge(self, path: str, answer: httpx.Response) -> str:
        kind = f"{answer.status_code // 100}xx"
        if kind == "4xx" and not shaped(path, answer.content):
            return "misshapen"
        if kind != "2xx":
            return kind
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            if not answer.content and "starting_after" in path:
                return "streams"  # there is nothing after that number
            *_, last = [frame for frame in answer.content.split(b"\n\n") if frame] or [b""]
            return "streams" if any(end in last for end in LAST) else "unended"
        self._remember(answer.json())
        return kind

    def _remember(self, content: object) -> None:
        if isinstance(content, dict):
            known = self._grammar.seen
            kinds = {"response": known.responses, "conversation": known.conversations}
            ids = kinds.get(content.get("object", ""))
            if ids is not None:
                ids.append(content["id"])
                del ids[1 : max(1, len(ids) - REMEMBERED)]


async def fuzz(url: str, requests: int, seed: int) -> Fuzz:
    limits = httpx.Limits(max_connections=TOGETHER)
    async with httpx.AsyncClient(base_url=url, timeout=HANG_S, limits=limits) as client:
        run = Fuzz(client, seed)
        await run.run(requests)
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with running() as (url, _):
        run = asyncio.run(fuzz(url, given.requests, given.seed))
    print(json.dumps({**sorted_counts(run.seen), "slowest_s": round(run.slowest, 2)}, indent=2))
    return 1 if bad(run.seen) else 0


def sorted_counts(seen: Counter[str]) -> dict[str, int]:
    return dict(sorted(seen.items()))


def bad(seen: Counter[str]) -> int:
    return sum(seen[what] for what in (*NEVER, "dead"))


if __name__ == "__main__":
    sys.exit(main())
