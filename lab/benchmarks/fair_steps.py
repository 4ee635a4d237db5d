"""Measure what a batch class costs a latency class in the engine's steps.

    python -m eaglegate.lab.benchmarks.fair_steps [--rounds 5] [--tokens 96] [--mode auto]

One real demo engine. Streams of the latency class run alone, beside three times as many streams of
a batch class with classes off (every request is alike), and with classes on; rounds take turns, so
that what else the machine does falls on all of them. The ratio of time per output token counts. The
text of every latency stream must be the same in all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from itertools import count
from statistics import median

from msgspec.structs import replace

from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from eaglegate.lab.benchmarks.drive import render, running

LOAD = 4
"""Streams of both classes over those of the latency class."""
PHASES = ("unloaded", "loaded", "shared")


def ask(name: str, prompt: tuple[int, ...], tokens: int) -> EngineRequest:
    sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(name, prompt, sampling, tenant=name.split("-")[0])


async def time_stream(engine: VllmEngine, request: EngineRequest) -> tuple[float, tuple[int, ...]]:
    """Seconds per output token after the first step, and the text."""
    began, first, tokens = 0.0, 0, []
    async for step in read_steps(engine.generate, request):
        tokens += step.token_ids
        if not began and tokens:
            began, first = time.perf_counter(), len(tokens)
    return (time.perf_counter() - began) / max(1, len(tokens) - first), tuple(tokens)


class BatchLoad:
    """Streams of the batch class, one after another, and the tokens that they get."""

    def __init__(self, engine: VllmEngine, prompts: list[tuple[int, ...]], tokens: int) -> None:
        self._engine, self._prompts, self._length = engine, prompts, tokens
        self._numbers = count()
        self.tokens = 0

    async def keep(self) -> None:
        while True:
            number = next(self._numbers)
            prompt = self._prompts[number % len(self._prompts)]
            request = ask(f"batch-{number}-{time.monotonic_ns()}", prompt, self._length)
            async for step in read_steps(self._engine.generate, request):
                self.tokens += len(step.token_ids)


async def measure(given: argparse.Namespace) -> dict[str, object]:
    times: dict[str, list[float]] = {phase: [] for phase in PHASES}
    rates: dict[str, list[float]] = {phase: [] for phase in PHASES}
    texts: set[tuple[int, tuple[int, ...]]] = set()
    async with running(given.mode) as engine:
        prompts = render(VllmRenderer(make_demo_arguments()))
        for turn in range(given.rounds + 1):
            for phase in PHASES:
                load = BatchLoad(engine, prompts, given.tokens)
                width = 0 if phase == "unloaded" else (LOAD - 1) * given.streams
                tasks = [asyncio.create_task(load.keep()) for _ in range(width)]
                await asyncio.sleep(0.5 if tasks else 0)
                objective = given.objective_ms if phase == "shared" else None
                began = time.perf_counter()
                before = load.tokens
                asked = [
                    replace(
                        ask(f"fast-{turn}-{phase}-{at}", prompts[at], given.tokens),
                        latency_ms=objective,
                    )
                    for at in range(given.streams)
                ]
                found = await asyncio.gather(*(time_stream(engine, one) for one in asked))
                rate = (load.tokens - before) / (time.perf_counter() - began)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                texts.update((at, text) for at, (_, text) in enumerate(found))
                if turn:
                    times[phase].append(median(seconds for seconds, _ in found))
                    rates[phase].append(rate)
        planning = await engine.describe_planning()
    alone = median(times["unloaded"])
    return {
        "machine_load": os.getloadavg()[0],
        "same_text": len(texts) == given.streams,
        "tpot_ms": {phase: round(1e3 * median(seconds), 2) for phase, seconds in times.items()},
        "ratio": {phase: round(median(seconds) / alone, 3) for phase, seconds in times.items()},
        "batch_tokens_per_s": {phase: round(median(rate), 1) for phase, rate in rates.items()},
        "sharing": planning.get("sharing"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--streams", type=int, default=2, help="streams of the latency class")
    parser.add_argument("--mode", default="auto", choices=["auto", "off"], help="the planner")
    parser.add_argument("--objective-ms", type=float, default=0.0)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
