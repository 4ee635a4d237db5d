"""Time per token at each depth and of an engine without speculation, interleaved in one run.

Both engines run all the time and take turns, so that a disturbance affects both. Only the ratios
count. Usage: ``python -m eaglegate.lab.benchmarks.depth [--rounds 7] [--tokens 96]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass

from eaglegate.engine.totals import Totals
from eaglegate.engine.vllm_backend.arguments import DEMO_DEPTH, make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import (
    QUESTIONS,
    Outcome,
    fix_depth,
    make_greedy,
    render,
    run_all,
    run_engine,
    speculation,
)

BATCHES = (1, 8)
DEPTHS = (0, 1, DEMO_DEPTH)


@dataclass(frozen=True)
class Row:
    """Result at one depth; ``ratio`` divides time per token by that without speculation."""

    batch: int
    lane: str
    ms_per_token: float
    ratio: float
    acceptance_length: float | None


async def ms_per_token(
    engine: VllmEngine, prompts: list[tuple[int, ...]], depth: int | None, tokens: int
) -> tuple[float, Totals]:
    """Return batch time over tokens of one sequence, which is one user's time per token."""
    requests = [
        fix_depth(depth, make_greedy(f"{number}", prompt, tokens))
        for number, prompt in enumerate(prompts)
    ]
    start = time.perf_counter()
    outcomes: list[Outcome] = await run_all(engine, requests)
    took_s = time.perf_counter() - start
    totals = sum((outcome.totals for outcome in outcomes), Totals())
    return took_s / (totals.tokens / len(prompts)) * 1e3, totals


async def measure(rounds: int, tokens: int) -> list[Row]:
    prompts = render(VllmRenderer(make_demo_arguments()), [QUESTIONS[1]] * max(BATCHES))
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    sums: dict[tuple[int, str], Totals] = defaultdict(Totals)
    async with (
        run_engine(speculative_config=None) as plain_engine,
        run_engine(speculative_config=speculation(DEMO_DEPTH)) as draft_engine,
    ):
        lanes = {"none": (plain_engine, None)}
        lanes |= {f"depth {depth}": (draft_engine, depth) for depth in DEPTHS}
        for _ in range(rounds + 1):
            for batch in BATCHES:
                for name, (engine, depth) in lanes.items():
                    ms, totals = await ms_per_token(engine, prompts[:batch], depth, tokens)
                    times[batch, name].append(ms)
                    sums[batch, name] += totals
    return [
        Row(
            batch,
            name,
            statistics.median(values[1:]),
            statistics.median(values[1:]) / statistics.median(times[batch, "none"][1:]),
            sums[batch, name].acceptance_length,
        )
        for (batch, name), values in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    rows = asyncio.run(measure(options.rounds, options.tokens))
    print("| batch | speculation | ms per token | ratio | acceptance length |")
    print("|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (row.batch, row.lane != "none", row.lane)):
        length = "" if row.acceptance_length is None else f"{row.acceptance_length:.2f}"
        print(f"| {row.batch} | {row.lane} | {row.ms_per_token:.2f} | {row.ratio:.2f} | {length} |")
    print(json.dumps([vars(row) for row in rows]))


if __name__ == "__main__":
    main()
