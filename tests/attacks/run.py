"""Grows every field of every endpoint in turn, and says what that does to everybody else.

python -m tests.attacks.run [--bytes 8000000] [--part 1/1] [--only chat]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import orjson

from tests.attacks import server
from tests.attacks.fields import Attack, attacks
from tests.attacks.watch import Watch

LIMIT_BYTES = 8 << 20
PATIENCE_S = 60.0


@contextmanager
def running() -> Iterator[tuple[str, int]]:
    """A gateway: its URL and the process's number."""
    process = subprocess.Popen(
        (sys.executable, "-m", server.__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.communicate("", timeout=60)


def attack(client: httpx.Client, one: Attack, size: int, seen: Counter[str]) -> None:
    body = orjson.dumps(one.grow(size))[:LIMIT_BYTES]
    began = time.perf_counter()
    try:
        headers = {"content-type": "application/json"}
        status = client.post(one.url, content=body, headers=headers).status_code
    except httpx.TimeoutException:
        status = 0
    took = time.perf_counter() - began
    seen["hang" if not status else f"{status // 100}xx"] += 1
    if not status or status >= 500 or took > 10:
        print(f"{status} after {took:.1f} s: {one.name}", file=sys.stderr)


def run(chosen: list[Attack], size: int) -> dict[str, float]:
    """Send the attacks; return counts of the answers, the latency of /health meanwhile and the
    growth of memory."""
    seen: Counter[str] = Counter()
    with running() as (url, pid), httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        client.post("/tokenize", json={"prompt": "warm"})
        with Watch(url, pid) as calm:
            time.sleep(3)
        with Watch(url, pid) as watch:
            for one in chosen:
                attack(client, one, size, seen)
    return {**seen, **watch.seen, "calm p99": calm.seen["p99"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=8_000_000)
    parser.add_argument("--part", default="1/1", help="the first of so many parts: 1/8")
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    chosen = [one for one in list(attacks())[part - 1 :: parts] if given.only in one.name]
    seen = run(chosen, given.bytes)
    print(json.dumps({"attacks": len(chosen), **seen}, indent=2))
    return 1 if seen.get("5xx") or seen.get("hang") else 0


if __name__ == "__main__":
    sys.exit(main())
