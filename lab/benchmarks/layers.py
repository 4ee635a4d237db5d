"""Measure the cost of each layer of the gateway and the capacity of one core.

    python -m eaglegate.lab.benchmarks.layers table [--rounds 20]       each layer left out in turn
    python -m eaglegate.lab.benchmarks.layers saturation [--rounds 5]
        tokens/s per core at 16, 256, 1024 streams
    python -m eaglegate.lab.benchmarks.layers prompt [--rounds 20]
        time to first byte of a 100 kB prompt

The engine is scripted. Every variant serves from its own process, and its rounds alternate with
the others', so that other load on the machine affects all. CPU is user and system time of the
serving process, from its CPU clock, including the engine's own part, one call per stream and step.
Only the difference or the ratio within one run counts.

The engine offers ``--offered`` tokens/s for any number of streams. Steps that are due arrive as a
burst when the event loop is free, like an engine's messages that wait in their socket.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import orjson
import uvloop

from eaglegate.lab.benchmarks.client import StreamClient, write_post
from eaglegate.lab.benchmarks.variants import (
    ALL,
    CHAT,
    KEY,
    TABLE,
    TOKENS,
    TOKENS_PER_STEP,
    ServingProcess,
    Variant,
)
from eaglegate.lab.benchmarks.wire import TOOL

ADDED = {"capture": "all", "store": "responses"}
"""Layers that a variant adds to another variant. All other layers are left out of ``all``."""


def write_request(variant: Variant, text: str) -> bytes:
    if variant.path == CHAT:
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "tools": [TOOL]}
        fields |= {"max_tokens": TOKENS, "stream_options": {"include_usage": True}}
    else:
        fields = {"input": text, "max_output_tokens": TOKENS, "store": variant.store}
    body = orjson.dumps({"model": "demo", "stream": True, **fields})
    return write_post(variant.path, body, KEY)


@dataclass(frozen=True)
class Sample:
    """One round of one variant."""

    us_per_token: float
    ms_per_request: float
    tokens_per_s: float
    chunks_per_token: float
    p99_gap_ms: float
    first_ms: float
    kib_per_stream: float


async def load(server: ServingProcess, clients: int, text: str = "Tell me a story.") -> Sample:
    request = write_request(server.variant, text)
    cpu, start = server.cpu_s(), time.perf_counter()
    sizes = [server.rss_bytes()]
    watch = asyncio.create_task(_watch_memory(server, sizes))
    streams = [await StreamClient.connect(server.port) for _ in range(clients)]
    answers = await asyncio.gather(*(stream.send(request) for stream in streams))
    spent_s, took_s = server.cpu_s() - cpu, time.perf_counter() - start
    watch.cancel()
    for stream in streams:
        stream.close()
    gaps = sorted(gap for answer in answers for gap in answer.gaps_s) or [0.0]
    num_tokens = clients * TOKENS
    return Sample(
        us_per_token=spent_s / num_tokens * 1e6,
        ms_per_request=spent_s / clients * 1e3,
        tokens_per_s=num_tokens / took_s,
        chunks_per_token=sum(answer.num_chunks for answer in answers) / num_tokens,
        p99_gap_ms=gaps[int(0.99 * (len(gaps) - 1))] * 1e3,
        first_ms=statistics.median(answer.first_s for answer in answers) * 1e3,
        kib_per_stream=(max(sizes) - server.idle_bytes) / clients / 1024,
    )


async def _watch_memory(server: ServingProcess, sizes: list[int]) -> None:
    while True:
        await asyncio.sleep(0.05)
        sizes.append(server.rss_bytes())


def measure(
    variants: list[Variant], rounds: int, clients: int, text: str = "Tell me a story."
) -> dict[str, list[Sample]]:
    """Run rounds in turn, in alternating order, and drop the first round of each variant."""
    servers = [ServingProcess(variant) for variant in variants]
    samples_by_name: dict[str, list[Sample]] = {variant.name: [] for variant in variants}
    try:
        for server in servers:
            server.wait_ready()
        for number in range(rounds + 1):
            for server in servers if number % 2 else reversed(servers):
                sample = uvloop.run(load(server, clients, text))
                if number:
                    samples_by_name[server.variant.name].append(sample)
    finally:
        for server in servers:
            server.close()
    return samples_by_name


def print_table(rounds: int, clients: int) -> None:
    """Print each layer's CPU per token, as the median of the rounds' differences."""
    samples_by_name = measure(list(TABLE), rounds, clients)
    base = samples_by_name["all"]
    total = statistics.median(sample.us_per_token for sample in base)
    print(f"{clients} streams of {TOKENS} tokens, {rounds} rounds in turn")
    print(f"all: {total:.2f} us of CPU per token\n")
    print("| layer | us/token | share | us/request |\n|---|---|---|---|")
    for variant in TABLE[1:]:
        if variant.name == "responses":
            continue
        base_name = ADDED.get(variant.name)
        samples_with = samples_by_name[variant.name] if base_name else base
        samples_without = samples_by_name[base_name] if base_name else samples_by_name[variant.name]
        pairs = zip(samples_with, samples_without, strict=True)
        cost = statistics.median(
            sample_with.us_per_token - sample_without.us_per_token
            for sample_with, sample_without in pairs
        )
        print(f"| {variant.name} | {cost:.2f} | {cost / total:.1%} | {cost * TOKENS:.0f} |")


def print_saturation(rounds: int, offered_rate: float) -> None:
    """Print the capacity of one core at each way of merging writes."""
    print(f"the engine offers {offered_rate:,.0f} tokens/s; medians of {rounds} rounds in turn\n")
    print(
        "| streams | interval | us/token | tokens/s per core | chunks/token | p99 gap | "
        "first byte | memory per stream |\n|---|---|---|---|---|---|---|---|"
    )
    for streams in (16, 256, 1024):
        step_s = streams * TOKENS_PER_STEP / offered_rate
        variants = [
            replace(ALL, name=name, interval_ms=interval, step_s=step_s)
            for name, interval in (("0", 0.0), ("auto", None), ("20 ms", 20.0))
        ]
        for name, samples in measure(variants, rounds, streams).items():
            print(f"| {streams} | {name} | {describe(samples)} |", flush=True)


def describe(samples: list[Sample]) -> str:
    def median(name: str) -> float:
        return statistics.median(getattr(sample, name) for sample in samples)

    cost = median("us_per_token")
    return " | ".join(
        (
            f"{cost:.1f}",
            f"{1e6 / cost:,.0f}",
            f"{median('chunks_per_token'):.2f}",
            f"{median('p99_gap_ms'):.0f} ms",
            f"{median('first_ms'):.0f} ms",
            f"{max(sample.kib_per_stream for sample in samples):.0f} KiB",
        )
    )


def print_prompt(rounds: int) -> None:
    """Print time to first byte and CPU of one request, with vLLM's renderer and the demo's
    template.
    """
    for size in (100, 100_000):
        text = ("The engine proposes and the target decides. " * (size // 44 + 1))[:size]
        variant = replace(ALL, name=str(size), real_template=True)
        samples = measure([variant], rounds, 1, text)[str(size)]
        first_ms = statistics.median(sample.first_ms for sample in samples)
        cpu = statistics.median(sample.ms_per_request for sample in samples)
        print(f"prompt of {size:,} bytes: first byte {first_ms:.1f} ms, CPU {cpu:.1f} ms a request")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("table", "saturation", "prompt"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16, help="clients in the table")
    parser.add_argument(
        "--offered", type=float, default=1_000_000.0, help="tokens/s that the engine makes"
    )
    options = parser.parse_args()
    match options.what:
        case "table":
            print_table(options.rounds, options.clients)
        case "saturation":
            print_saturation(options.rounds, options.offered)
        case _:
            print_prompt(options.rounds)


if __name__ == "__main__":
    main()
