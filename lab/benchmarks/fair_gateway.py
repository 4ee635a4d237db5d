"""Measure what a batch class costs a latency class over HTTP, with the client on the machine.

    python -m eaglegate.lab.benchmarks.fair_gateway [--rounds 5] [--tokens 192]

It uses one gateway with the demo. Streams of a latency class run alone (``unloaded``), streams of a
key without a class run beside three times as many of the batch class (``loaded``), and streams of
the latency class run beside the same load (``shared``). Phases take turns. The result is the ratio
of time per output token. The client shares the machine with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httpx

from eaglegate.lab.benchmarks.client import StreamClient, write_post
from eaglegate.lab.benchmarks.fair_steps import Phase, summarize
from eaglegate.lab.measure.servers import Setting, serve
from eaglegate.server.access.keys import hash_key
from tests.engine.drive import QUESTIONS

SECRETS = {name: f"eg-{name}-secret-of-32-bytes-or-more" for name in ("chat", "plain", "nightly")}
OPERATOR = "eg-operator-secret-of-32-bytes-or-more"
PHASES = {"unloaded": ("chat", False), "loaded": ("plain", True), "shared": ("chat", True)}
"""Key of the timed streams, and True if the batch class runs at the same time."""
TOKENS = re.compile(r'^eaglegate_key_decode_tokens_total\{.*key="nightly".*\} (\S+)$', re.MULTILINE)


def make_request(key: str, question: str, tokens: int) -> bytes:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    return write_post("/v1/chat/completions", json.dumps(body).encode(), SECRETS[key])


class GatewayLab:
    """One gateway, and the phases that take turns on it."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url, self._options = url, options
        self.phases = {name: Phase() for name in PHASES}

    async def run_phase(self, name: str, turn: int) -> None:
        """Run a phase. The first turn warms the engine up."""
        options, (key, is_loaded) = self._options, PHASES[name]
        width = (options.load - 1) * options.streams if is_loaded else 0
        load = [asyncio.create_task(self._keep_sending(index)) for index in range(width)]
        await asyncio.sleep(0.5 if load else 0)
        start_tokens, start = await self._count_tokens(), time.perf_counter()
        tpot_s = await asyncio.gather(*(self._time(key, index) for index in range(options.streams)))
        counts = Counter({0: await self._count_tokens() - start_tokens})
        seconds = time.perf_counter() - start
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        if turn:
            phase = self.phases[name]
            phase.tpot_s.append(median(tpot_s))
            phase.tokens.append(counts)
            phase.seconds.append(seconds)

    async def _connect(self) -> StreamClient:
        return await StreamClient.connect(urlsplit(self._url).port or 0)

    async def _time(self, key: str, index: int) -> float:
        """Return the seconds per output token after the first write."""
        client = await self._connect()
        answer = await client.send(make_request(key, QUESTIONS[index], self._options.tokens))
        client.close()
        return sum(answer.gaps_s) / (answer.count_tokens() - 1)

    async def _keep_sending(self, index: int) -> None:
        """Send requests of the batch class one after another."""
        client = await self._connect()
        try:
            while True:
                question = QUESTIONS[index % len(QUESTIONS)]
                await client.send(make_request("nightly", question, self._options.tokens))
        finally:
            client.close()

    async def _count_tokens(self) -> int:
        """Count the output tokens of the batch class since the start."""
        async with httpx.AsyncClient() as client:
            head = {"authorization": f"Bearer {OPERATOR}"}
            page = await client.get(f"{self._url}/metrics", headers=head, timeout=60)
        return int(sum(map(float, TOKENS.findall(page.raise_for_status().text))))


async def measure(options: argparse.Namespace) -> dict[str, object]:
    rows = [f"- name: {name}\n  sha256: {hash_key(key).hex()}\n" for name, key in SECRETS.items()]
    rows.append(f"- name: operator\n  admin: true\n  sha256: {hash_key(OPERATOR).hex()}\n")
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text("".join(rows))
        classes = ("--key-class", "chat=latency", "nightly=batch:1")
        flags = (f"--api-key-file={keys}", *classes)
        setting = Setting("gateway", flags=flags)
        log = Path(folder) / "gateway.log"
        async with serve(setting, log, lambda line: print(line, file=sys.stderr)) as url:
            lab = GatewayLab(url, options)
            for turn in range(options.rounds + 1):
                for name in PHASES:
                    await lab.run_phase(name, turn)
    return summarize(lab.phases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--streams", type=int, default=2, help="streams of the latency class")
    parser.add_argument(
        "--load", type=int, default=4, help="streams of both classes over the latency class"
    )
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
