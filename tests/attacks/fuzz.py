"""Sends strange and malformed requests and says what must not have happened.

python -m tests.attacks.fuzz [--requests 20000] [--seed 1]

Nothing may hang, nothing may be a 5xx, every error has the API's shape, and every stream ends as
its API says. Most requests are of ``grammar.py``, a third of ``malformed.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from tests.attacks.grammar import RequestGrammar
from tests.attacks.malformed import Spoiler
from tests.attacks.run import running

HANG_S = 30.0
TOGETHER = 8
REMEMBERED = 50
NEVER = ("5xx", "raw 5xx", "hang", "broken", "misshapen", "unended")
LAST = (
    *(f'"type":"response.{end}"'.encode() for end in ("completed", "failed", "incomplete")),
    b'"type":"response.cancelled"',
    b'"type":"message_stop"',
    b'"type":"error"',
    b"data: [DONE]",
)
"""Marks of a last frame: every stream's last frame has one of them."""


def shaped(path: str, body: bytes) -> bool:
    """Whether an error is in the API's own shape."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    kinds = {"message", "type"} if path.startswith("/v1/messages") else {"message", "type", "code"}
    return kinds <= set(error) and bool(error["message"])


class Fuzz:
    def __init__(self, client: httpx.AsyncClient, document: dict, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self._client = client
        self._grammar, self._spoiler = RequestGrammar(seed), Spoiler(document, seed)

    async def run(self, requests: int) -> None:
        left = iter(range(requests))
        async with asyncio.TaskGroup() as group:
            for _ in range(TOGETHER):
                group.create_task(self._send_some(left))
        alive = await self._client.get("/health")
        self.seen["dead"] = int(alive.status_code != 200)

    async def _send_some(self, left: Iterator[int]) -> None:
        for number in left:
            if number % 10 == 0:
                await self._send_raw(self._spoiler.raw())
            else:
                source = self._grammar if number % 3 else self._spoiler
                await self._send(*source.request())

    async def _send_raw(self, message: bytes) -> None:
        address = urlsplit(str(self._client.base_url))
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(message)
            writer.write_eof()
            async with asyncio.timeout(HANG_S):
                answer = await reader.read(1 << 16)
            found = "raw 5xx" if b" 500 " in answer[:40] else "raw"
        except TimeoutError:
            found = "hang"
        except ConnectionError:
            found = "raw"
        finally:
            writer.close()
        self.seen[found] += 1
        if found in NEVER:
            print(f"{found}: {message[:200]!r}", file=sys.stderr)

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
        if "json" in answer.headers.get("content-type", ""):
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
    # An expiry of its own would let httpx close a connection that it has just given to a request.
    limits = httpx.Limits(max_connections=TOGETHER, keepalive_expiry=None)
    async with httpx.AsyncClient(base_url=url, timeout=HANG_S, limits=limits) as client:
        run = Fuzz(client, (await client.get("/openapi.json")).json(), seed)
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
