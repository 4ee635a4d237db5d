"""Measure what a batch class costs a latency class in the engine's steps.

    python -m eaglegate.lab.benchmarks.fair_steps [--rounds 5] [--tokens 96] [--prompt 0]

It uses one real demo engine. Streams of the latency class run alone, then beside three times as
many streams of a batch class, with classes off (all requests are equal) and with classes on. Rounds
take turns, so that other load on the machine affects all of them. The result is the ratio of time
per output token, of the medians and of each round. The text of every latency stream must be the
same in all of them. ``--prompt`` is the number of new prompt tokens in each batch request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from msgspec.structs import replace

from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import render, run_engine

PHASES = ("unloaded", "loaded", "shared")


def ask(name: str, prompt: tuple[int, ...], tokens: int) -> EngineRequest:
    sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(name, prompt, sampling, tenant=name.split("-")[0])


async def time_stream(engine: VllmEngine, request: EngineRequest) -> tuple[float, tuple[int, ...]]:
    """Return the seconds per output token after the first step, and the text."""
    start, first_tokens, tokens = 0.0, 0, []
    async for step in read_steps(engine.generate, request):
        tokens += step.token_ids
        if not start and tokens:
            start, first_tokens = time.perf_counter(), len(tokens)
    return (time.perf_counter() - start) / max(1, len(tokens) - first_tokens), tuple(tokens)


class BatchLoad:
    """Streams of the batch class, each with one request after another, and their tokens."""

    def __init__(
        self, engine: VllmEngine, prompts: list[tuple[int, ...]], options: argparse.Namespace
    ) -> None:
        self._engine, self._prompts, self._options = engine, prompts, options
        self._numbers = count()
        self._rng = random.Random(0)
        self.tokens: Counter[int] = Counter()
        """Number of tokens by stream."""

    async def keep_sending(self, stream: int) -> None:
        while True:
            number = next(self._numbers)
            prompt = self._prompts[number % len(self._prompts)]
            prompt += tuple(self._rng.choices(prompt, k=self._options.prompt))
            name = f"batch-{number}-{time.monotonic_ns()}"
            async for step in read_steps(
                self._engine.generate, ask(name, prompt, self._options.tokens)
            ):
                self.tokens[stream] += len(step.token_ids)


@dataclass
class Phase:
    """Measurements of one phase, one per round."""

    tpot_s: list[float] = field(default_factory=list)
    tokens: list[Counter[int]] = field(default_factory=list)
    """Tokens of each batch stream, by round."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each round."""

    def rate(self) -> float:
        """Return the tokens per second of the batch class."""
        return sum(sum(counts.values()) for counts in self.tokens) / sum(self.seconds)

    def fewest(self) -> int:
        """Return the tokens of the batch stream that got the fewest in all rounds."""
        total = sum(self.tokens, Counter[int]())
        return min(total.values(), default=0)


class Lab:
    """One engine, and the phases that take turns on it."""

    def __init__(
        self, engine: VllmEngine, prompts: list[tuple[int, ...]], options: argparse.Namespace
    ) -> None:
        self._engine, self._prompts, self._options = engine, prompts, options
        self.phases = {phase: Phase() for phase in PHASES}
        self.texts: set[tuple[int, tuple[int, ...]]] = set()

    async def run_phase(self, phase: str, turn: int) -> None:
        """Run a phase. The first turn warms the engine up."""
        options, load = self._options, BatchLoad(self._engine, self._prompts, self._options)
        width = 0 if phase == "unloaded" else (options.load - 1) * options.streams
        tasks = [asyncio.create_task(load.keep_sending(stream)) for stream in range(width)]
        await asyncio.sleep(0.5 if tasks else 0)
        objective = None if phase == "loaded" else options.objective_ms
        start_counts, start = load.tokens.copy(), time.perf_counter()
        requests = [
            replace(
                ask(f"fast-{turn}-{phase}-{index}", self._prompts[index], options.tokens),
                latency_ms=objective,
            )
            for index in range(options.streams)
        ]
        results = await asyncio.gather(
            *(time_stream(self._engine, request) for request in requests)
        )
        seconds = time.perf_counter() - start
        counts = Counter(
            {stream: load.tokens[stream] - start_counts[stream] for stream in range(width)}
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.texts.update((index, text) for index, (_, text) in enumerate(results))
        if turn:
            record = self.phases[phase]
            record.tpot_s.append(median(tpot for tpot, _ in results))
            record.tokens.append(counts)
            record.seconds.append(seconds)


def summarize(phases: Mapping[str, Phase]) -> dict[str, object]:
    """Summarize the phases; ``ratio`` is over the phase ``unloaded``."""
    baseline = phases["unloaded"].tpot_s
    summary: dict[str, object] = {"machine_load": os.getloadavg()[0]}
    for name, phase in phases.items():
        ratios = [time_s / base for time_s, base in zip(phase.tpot_s, baseline, strict=True)]
        summary[name] = {
            "tpot_ms": round(1e3 * median(phase.tpot_s), 2),
            "ratio": round(median(phase.tpot_s) / median(baseline), 3),
            "ratios": sorted(round(ratio, 3) for ratio in ratios),
            "batch_tokens_per_s": round(phase.rate(), 1),
            "batch_tokens_of_least": phase.fewest(),
        }
    return summary


async def measure(options: argparse.Namespace) -> dict[str, object]:
    async with run_engine(options.mode) as engine:
        lab = Lab(engine, render(VllmRenderer(make_demo_arguments())), options)
        for turn in range(options.rounds + 1):
            for phase in PHASES:
                await lab.run_phase(phase, turn)
        planning = await engine.describe_planning()
    identity = {"same_text": len(lab.texts) == options.streams}
    return identity | summarize(lab.phases) | {"sharing": planning.get("sharing")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--streams", type=int, default=2, help="streams of the latency class")
    parser.add_argument(
        "--load",
        type=int,
        default=4,
        help="streams of both classes for each one of the latency class",
    )
    parser.add_argument("--prompt", type=int, default=0, help="new prompt tokens of batch requests")
    parser.add_argument("--mode", default="auto", choices=["auto", "off"], help="the planner")
    parser.add_argument("--objective-ms", type=float, default=0.0)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
