"""Measure prefix affinity on real workers: prompt tokens found cached, and balance.

    python -m eaglegate.lab.benchmarks.fleet_hits [--workers 2] [--sessions 12] [--turns 6]

Real vLLM servers of the built-in demo behind one gateway. Sessions of several turns, three system
prompts among them, each turn sending all before it; first with affinity as it is by default, then
with requests placed by load alone. Both have texts of their own, so that neither finds the other's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import ADMIN, RunningGateway, serving
from tests.workers import GATEWAY, WorkerProcess, vllm_worker

BLOCKS_TOO_LARGE = ("--affinity-block", "4096")
"""No prompt has a whole block, so that none is known."""
MODES = {"affinity": (), "load alone": BLOCKS_TOO_LARGE}
WORDS = ("river", "stone", "lantern", "market", "winter", "copper", "garden", "signal", "harbor")
SYSTEM_WORDS, TURN_WORDS = 250, 60
AT_ONCE = 6


@dataclass
class Tally:
    prompt: int = 0
    cached: int = 0
    requests: int = 0


def text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


async def session(
    http: httpx.AsyncClient, system: str, chance: random.Random, turns: int, tally: Tally
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for _ in range(turns):
        messages.append({"role": "user", "content": text(chance, TURN_WORDS)})
        body = {"model": "demo", "messages": messages, "max_tokens": 24, "temperature": 0}
        answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
        usage = answer["usage"]
        tally.prompt += usage["prompt_tokens"]
        tally.cached += usage["prompt_tokens_details"]["cached_tokens"]
        tally.requests += 1
        said = answer["choices"][0]["message"]
        messages.append({"role": "assistant", "content": said["content"] or said["reasoning"]})


async def all_sessions(url: str, mode: str, sessions: int, turns: int) -> Tally:
    tally, places = Tally(), asyncio.Semaphore(AT_ONCE)
    systems = [text(random.Random(f"{mode} {at}"), SYSTEM_WORDS) for at in range(3)]

    async def one(at: int) -> None:
        async with places:
            chance = random.Random(f"{mode} session {at}")
            await session(http, systems[at % len(systems)], chance, turns, tally)

    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        await asyncio.gather(*(one(at) for at in range(sessions)))
    return tally


def until_all_serve(url: str) -> None:
    """The gateway is ready when one does."""
    while any(
        worker["state"] != "serving"
        for worker in httpx.get(f"{url}/admin/status").json()["workers"]
    ):
        time.sleep(0.2)


def line(mode: str, tally: Tally, gateway: RunningGateway, workers: list[WorkerProcess]) -> str:
    name = "eaglegate_worker_tokens_total"
    made = [gateway.metric(name, worker=worker.url) or 0 for worker in workers]
    busiest = max(made) * len(made) / sum(made)
    share = tally.cached / tally.prompt
    return f"| {mode} | {tally.requests} | {tally.prompt:,} | {share:.1%} | {busiest:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--turns", type=int, default=6)
    options = parser.parse_args()
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        logs = [folder / f"worker-{at}.log" for at in range(options.workers)]
        workers = [running.enter_context(vllm_worker(log)) for log in logs]
        upstream = ",".join(worker.url for worker in workers)
        print("| placed by | requests | prompt tokens | cached | busiest worker beside the mean |")
        print("|---|---|---|---|---|")
        for mode, more in MODES.items():
            line_ = (*GATEWAY, *ADMIN, "--upstream", upstream, *more)
            with serving(folder / f"{len(more)}.log", line_) as gateway:
                until_all_serve(gateway.operator)
                tally = asyncio.run(
                    all_sessions(gateway.url, mode, options.sessions, options.turns)
                )
                print(line(mode, tally, gateway, workers), flush=True)


if __name__ == "__main__":
    main()
