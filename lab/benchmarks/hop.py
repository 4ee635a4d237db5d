"""Measure the cost of a gateway in front of a worker, compared with asking the worker directly.

    python -m eaglegate.lab.benchmarks.hop [--rounds 6] [--clients 1 8] [--tokens 256]

One vLLM server of the built-in demo (EAGLE 3.1, K = 3) answers streamed chat completions with
offered tools, through its own API and through a gateway that drives it at token level. The rounds
alternate, so that other load on the machine affects both. CPU is user and system time of the two
server processes, from their CPU clocks. The engine has a separate process and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import orjson

from eaglegate.lab.benchmarks.wire import DEMO, ENGINE, Server, free_port, start_server_process
from eaglegate.lab.benchmarks.wire import request as body_of

TARGET = str(DEMO / "target")
WORKER = [
    *ENGINE,
    "--served-model-name=demo",
    "--host=127.0.0.1",
    "--enable-scale-out",
    "--scheduler-cls=eaglegate.engine.Scheduler",
]
GATEWAY = ["--served-model-name=demo", "--tool-call-parser=hermes", "--reasoning-parser=qwen3"]


@dataclass(frozen=True, slots=True)
class Round:
    """Figures of one round: medians over its streams, and CPU per token of each process."""

    ttft_ms: float
    token_ms: float
    """Milliseconds per token after the first."""
    gateway_us: float
    worker_us: float

    @property
    def server_us(self) -> float:
        return self.gateway_us + self.worker_us


def worker_command(port: int) -> list[str]:
    module = "vllm.entrypoints.openai.api_server"
    return [sys.executable, "-m", module, f"--model={TARGET}", *WORKER, f"--port={port}"]


def gateway_command(port: int, worker: Server) -> list[str]:
    serve = [sys.executable, "-m", "eaglegate.server", "serve", TARGET, "--upstream", worker.url]
    return [*serve, *GATEWAY, f"--port={port}", "--responses-store=none"]


async def time_stream(client: httpx.AsyncClient, url: str, tokens: int) -> tuple[float, float, int]:
    """Return an answer's seconds to the first token and to the end, and its tokens."""
    start, first_s, usage = time.perf_counter(), 0.0, 0
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body_of(tokens)) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = orjson.loads(line[6:])
            if not first_s and says_something(chunk):
                first_s = time.perf_counter() - start
            usage = (chunk.get("usage") or {}).get("completion_tokens", usage)
    return first_s, time.perf_counter() - start, usage


def says_something(chunk: dict) -> bool:
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    return any(delta.get(name) for name in ("content", "reasoning", "reasoning_content"))


async def load(url: str, gateway: Server, worker: Server, clients: int, tokens: int) -> Round:
    async with httpx.AsyncClient(timeout=300) as client:
        start_s = gateway.cpu_s(), worker.cpu_s()
        results = await asyncio.gather(*(time_stream(client, url, tokens) for _ in range(clients)))
        end_s = gateway.cpu_s(), worker.cpu_s()
    num_tokens = sum(count for _, _, count in results)
    return Round(
        statistics.median(first_s for first_s, _, _ in results) * 1e3,
        statistics.median((end - first_s) / (count - 1) for first_s, end, count in results) * 1e3,
        (end_s[0] - start_s[0]) / num_tokens * 1e6,
        (end_s[1] - start_s[1]) / num_tokens * 1e6,
    )


def median(rounds: list[Round], name: str) -> float:
    return statistics.median(getattr(sample, name) for sample in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    rounds: dict[tuple[int, str], list[Round]] = defaultdict(list)
    with ExitStack() as stack:
        port = free_port()
        worker = stack.enter_context(start_server_process("worker", port, worker_command(port)))
        port = free_port()
        gateway = stack.enter_context(
            start_server_process("gateway", port, gateway_command(port, worker))
        )
        for number in range(options.rounds + 1):
            for clients in options.clients:
                for name, url in (("direct", worker.url), ("hop", gateway.url)):
                    sample = asyncio.run(load(url, gateway, worker, clients, options.tokens))
                    if number:
                        rounds[clients, name].append(sample)
    for clients in options.clients:
        print_summary(clients, rounds[clients, "direct"], rounds[clients, "hop"])


def print_summary(clients: int, direct_rounds: list[Round], hop_rounds: list[Round]) -> None:
    summary = {}
    for name in ("ttft_ms", "token_ms", "server_us", "worker_us", "gateway_us"):
        direct_value, hop_value = median(direct_rounds, name), median(hop_rounds, name)
        summary[name] = {"direct": round(direct_value, 2), "hop": round(hop_value, 2)}
        if direct_value > 1e-6 and name != "gateway_us":
            summary[name]["ratio"] = round(hop_value / direct_value, 3)
    print(orjson.dumps({"clients": clients, **summary}).decode())


if __name__ == "__main__":
    main()
