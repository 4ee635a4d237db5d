"""Time of lookups per step: index, score and choice, for the worst texts that we know.

    python -m eaglegate.lab.benchmarks.lookups [--requests 64] [--tokens 32000]

CPU time of the process, because machines that run benchmarks are shared. Every step commits four
tokens for every request. ``flow``: the text goes on as the match did. ``break``: it does not, so
every request searches anew.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable

from eaglegate.engine.speculation.lookup.chooser import LookupChooser
from eaglegate.engine.speculation.lookup.index import SLICE, LookupIndex

WIDTH, DEPTH, COMMITTED = 8, 3, 4
TEXTS: dict[str, Callable[[random.Random], int]] = {
    "one token": lambda _: 7,
    "two tokens": lambda rng: rng.randrange(2),
    "words": lambda rng: min(int(rng.paretovariate(0.6)), 131071),
    "random": lambda rng: rng.randrange(131072),
}


def make_text(name: str, count: int, rng: random.Random) -> list[int]:
    return [TEXTS[name](rng) for _ in range(count)]


def time_steps(name: str, requests: int, tokens: int, steps: int, breaks: bool) -> list[float]:
    """Return the milliseconds of each step."""
    rng = random.Random(0)
    chooser = LookupChooser(WIDTH, DEPTH)
    texts = {f"request {i}": make_text(name, tokens, rng) for i in range(requests)}
    for request, text in texts.items():
        chooser.begin(request, text, len(text), traffic=f"slice {hash(request) % 4}")
    while chooser._unbuilt:
        chooser.begin_step()
    gc.freeze()  # as vLLM's engine does; the texts of a benchmark would take 8 ms to collect
    proposals: dict[str, list[int]] = {}
    times = []
    for _ in range(steps):
        for request, text in texts.items():
            continuation = [] if breaks else proposals.get(request, [])[: COMMITTED - 1]
            text += [*continuation, *make_text(name, COMMITTED - len(continuation), rng)]
        drafts = {request: make_text(name, DEPTH, rng) for request in texts}
        start = time.process_time()
        chooser.begin_step()
        proposals = {
            request: chooser.choose(request, drafts[request], DEPTH, WIDTH) or drafts[request]
            for request in texts
        }
        times.append(1e3 * (time.process_time() - start))
    return times


def time_building(tokens: int) -> list[float]:
    """Return the milliseconds of each step's share of indexing a long prompt."""
    text, times = make_text("words", tokens, random.Random(0)), []
    index, is_left = LookupIndex(text, len(text)), 1
    while is_left:
        start = time.process_time()
        is_left = index.build(SLICE)
        times.append(1e3 * (time.process_time() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    print(f"{options.requests} requests of {options.tokens:,} tokens: ms a step")
    print(f"{'text':12} {'':6} {'best':>6} {'median':>7} {'worst':>6}")
    for name in TEXTS:
        for breaks in (False, True):
            times = time_steps(name, options.requests, options.tokens, options.steps, breaks)
            label = "break" if breaks else "flow"
            median = statistics.median(times)
            print(f"{name:12} {label:6} {min(times):6.3f} {median:7.3f} {max(times):6.3f}")
    times = time_building(100_000)
    print(f"prompt of 100,000 tokens: {sum(times):.1f} ms in {len(times)} steps, at most ", end="")
    print(f"{max(times):.2f} ms in one")


if __name__ == "__main__":
    main()
