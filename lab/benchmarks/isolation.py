"""Attacks of one tenant on another, on the demo engine, and the cost of preventing them.

    python -m eaglegate.lab.benchmarks.isolation sizes [--cadence 25]
    python -m eaglegate.lab.benchmarks.isolation timing
    python -m eaglegate.lab.benchmarks.isolation hits

Several attacks may be named; they share the servers.

``sizes``: an eavesdropper has seen streams of ``--prompts`` known prompts and guesses, by sizes and
gaps alone, which of them a new stream answers. Plain, obfuscated and paced streams take turns.
Answers are sampled at ``--temperature`` without a seed. With ``--natural`` they end where the model
ends them, so that their length gives a hint as well.

``timing``: a key guesses, by the time to its first token, if another key sent the same prompt
before, with one prefix cache for all keys and with one for each.

``hits``: keys that share a system prompt send questions in turn. The result is the share of prompt
tokens found in the cache, with one cache and with one for each key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx

from eaglegate.lab.benchmarks.client import write_post
from eaglegate.lab.benchmarks.traces import (
    BARE_VIEWS,
    Trace,
    area_under_curve,
    attack,
    record,
)
from eaglegate.lab.measure.servers import Setting, serve
from eaglegate.server.access.keys import hash_key

CHAT = "/v1/chat/completions"
PROMPTS = Path(__file__).parents[1] / "measure" / "data" / "chat.jsonl"
SECRETS = {f"key{index}": f"eg-key{index}-secret-of-32-bytes-or-more" for index in range(8)}
STREAMS = {"plain": ("plain", False), "obfuscated": ("plain", True), "paced": ("paced", False)}
"""Attacked streams: their server, and True if they are obfuscated."""
SHARED, SEPARATE = tuple(SECRETS)[:4], tuple(SECRETS)[4:]
"""Keys that share a prefix cache, and keys with one each."""
WORDS = (
    "river",
    "stone",
    "lamp",
    "window",
    "garden",
    "engine",
    "paper",
    "silver",
    "cloud",
    "north",
)


def report(text: str) -> None:
    print(text, flush=True)


def make_flags(folder: Path, *flags: str) -> tuple[str, ...]:
    """Return the flags of the demo with eight named keys."""
    rows = [f"- name: {name}\n  sha256: {hash_key(key).hex()}\n" for name, key in SECRETS.items()]
    keys = folder / "keys.yaml"
    keys.write_text("keys:\n" + "".join(rows))
    return (f"--api-key-file={keys}", *flags)


@asynccontextmanager
async def gateways(**flags: Sequence[str]) -> AsyncGenerator[dict[str, str]]:
    """Start servers together, and yield their URLs by name."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = [
            Setting(name, flags=make_flags(folder, *values)) for name, values in flags.items()
        ]
        servers = [serve(setting, folder / f"{setting.name}.log", report) for setting in settings]
        urls = await asyncio.gather(*map(stack.enter_async_context, servers))
        yield dict(zip(flags, urls, strict=True))


# Sizes and gaps.


def make_body(prompt: str, args: argparse.Namespace, *, has_obfuscation: bool) -> bytes:
    options = {"stream_options": {"include_obfuscation": True}} if has_obfuscation else {}
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": args.temperature,
        "max_tokens": args.tokens,
        "ignore_eos": not args.natural,
    }
    return json.dumps(body | options).encode()


async def record_all(
    args: argparse.Namespace, urls: dict[str, str], prompts: list[str]
) -> dict[str, list[tuple[int, Trace]]]:
    """Record traces by setting, in rounds with every prompt in every setting, shuffled."""
    settings = {name: STREAMS[name] for name in args.streams}
    ports = {name: urlsplit(url).port or 0 for name, url in urls.items()}
    traces: dict[str, list[tuple[int, Trace]]] = {name: [] for name in settings}
    places = asyncio.Semaphore(args.at_once)

    async def take(name: str, index: int) -> None:
        server, has_obfuscation = settings[name]
        body = make_body(prompts[index], args, has_obfuscation=has_obfuscation)
        async with places:
            request = write_post(CHAT, body, SECRETS["key0"])
            traces[name].append((index, await record(ports[server], request)))

    rng, deadline = random.Random(args.seed), time.monotonic() + args.limit
    for number in range(args.rounds):
        if time.monotonic() > deadline:
            report(f"stopped after {number} rounds: --limit")
            break
        turns = [(name, index) for name in settings for index in range(len(prompts))]
        rng.shuffle(turns)
        await asyncio.gather(*(take(name, index) for name, index in turns))
    return traces


def describe(name: str, traces: list[tuple[int, Trace]], prompts: int, views: Any = None) -> str:
    half = len(traces) // (2 * prompts) * prompts
    guess = attack(traces[:half], traces[half:], *([] if views is None else [views]))
    error = (guess.accuracy * (1 - guess.accuracy) / guess.num_tests) ** 0.5
    streams = [trace for _, trace in traces]
    return (
        f"| {name} | {100 * guess.accuracy:.1f} % ± {196 * error:.1f} | {guess.view}, k = "
        f"{guess.neighbours} | {guess.num_tests} | "
        f"{median(sum(t.sizes) for t in streams) / 1024:.1f} KiB | "
        f"{1000 * median(t.times[0] for t in streams):.0f} ms | "
        f"{1000 * median(t.content_s for t in streams):.0f} ms | "
        f"{1000 * median(t.times[-1] for t in streams):.0f} ms |"
    )


def count_blocks(traces: list[tuple[int, Trace]]) -> dict[int, Counter[int]]:
    """Count the streams of each prompt by number of writes, which the end of a paced one shows."""
    counters: dict[int, Counter[int]] = {}
    for index, trace in traces:
        counters.setdefault(len(trace.sizes), Counter())[index] += 1
    return dict(sorted(counters.items()))


async def measure_sizes(args: argparse.Namespace, urls: dict[str, str]) -> None:
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    prompts = [row["steps"][0][0]["content"] for row in rows][: args.prompts]
    traces = await record_all(args, urls, prompts)
    count = len(prompts)
    report(f"{count} prompts, chance {100 / count:.1f} %; cadence {args.cadence:g} ms")
    report("| streams | accuracy | by | tests | bytes | first | finish | end |")
    report("|---|---|---|---|---|---|---|---|")
    for name, traces_of_name in traces.items():
        report(describe(name, traces_of_name, count))
    if "paced" in traces:
        report(describe("paced, without filling", traces["paced"], count, BARE_VIEWS))
        report("| blocks | streams of each prompt |\n|---|---|")
        for blocks, prompts_of in count_blocks(traces["paced"]).items():
            counts = " ".join(str(prompts_of[index]) for index in range(count))
            report(f"| {blocks} | {counts} |")


# Time to the first token.


async def ask(client: httpx.AsyncClient, key: str, text: str, system: str = "") -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body = {"model": "demo", "messages": messages, "max_tokens": 1}
    head = {"authorization": f"Bearer {SECRETS[key]}"}
    answer = await client.post(CHAT, json=body, headers=head)
    usage: dict[str, Any] = answer.raise_for_status().json()["usage"]
    return usage


def write_text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


async def probe(
    client: httpx.AsyncClient, args: argparse.Namespace, victim: str, attacker: str
) -> dict[bool, list[float]]:
    """Return seconds to the attacker's first token, by True if the victim had sent the prompt."""
    rng = random.Random(args.seed)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for is_repeat in rng.sample([True, False] * args.trials, 2 * args.trials):
        text = write_text(rng, args.words)
        await ask(client, victim, text if is_repeat else write_text(rng, args.words))
        start = time.perf_counter()
        await ask(client, attacker, text)
        seconds[is_repeat].append(time.perf_counter() - start)
    return seconds


async def measure_timing(args: argparse.Namespace, urls: dict[str, str]) -> None:
    report("| prefix cache | AUC | sent before | not sent | trials |\n|---|---|---|---|---|")
    async with httpx.AsyncClient(base_url=urls["plain"], timeout=120) as client:
        for name, keys in (("shared", SHARED), ("separate", SEPARATE)):
            times = await probe(client, args, keys[0], keys[1])
            area = area_under_curve(times[True], times[False])
            repeat_ms, fresh_ms = (1000 * median(times[is_repeat]) for is_repeat in (True, False))
            report(
                f"| {name} | {area:.3f} | {repeat_ms:.0f} ms | {fresh_ms:.0f} ms | "
                f"{2 * args.trials} |"
            )


async def measure_hits(args: argparse.Namespace, urls: dict[str, str]) -> None:
    report("| prefix cache | prompt tokens | cached | share |\n|---|---|---|---|")
    async with httpx.AsyncClient(base_url=urls["plain"], timeout=120) as client:
        for name, keys in (("shared", SHARED), ("separate", SEPARATE)):
            rng = random.Random(f"{args.seed} {name}")
            system, total, cached_tokens = write_text(rng, args.words), 0, 0
            for _ in range(args.asks):
                for key in keys:
                    usage = await ask(client, key, write_text(rng, 30), system)
                    total += usage["prompt_tokens"]
                    cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
            report(f"| {name} | {total} | {cached_tokens} | {100 * cached_tokens / total:.1f} % |")


MEASURES = {"sizes": measure_sizes, "timing": measure_timing, "hits": measure_hits}


async def measure(args: argparse.Namespace) -> None:
    flags = {"plain": ("--shared-prefix-cache", *SHARED)}
    if "sizes" in args.what and "paced" in args.streams:
        flags["paced"] = (f"--stream-cadence={args.cadence:g}",)
    async with gateways(**flags) as urls:
        for name in args.what:
            await MEASURES[name](args, urls)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=tuple(MEASURES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--streams", nargs="+", choices=tuple(STREAMS), default=[*STREAMS])
    parser.add_argument("--at-once", type=int, default=1, help="streams at a time (sizes)")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--natural", action="store_true", help="answers end where they end")
    parser.add_argument("--cadence", type=float, default=25.0, metavar="MS")
    parser.add_argument("--trials", type=int, default=30, help="of each kind (timing)")
    parser.add_argument("--asks", type=int, default=5, help="questions of each key (hits)")
    parser.add_argument("--words", type=int, default=600, help="words of a prompt (timing, hits)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=900.0, metavar="S")
    args = parser.parse_args()
    asyncio.run(measure(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
